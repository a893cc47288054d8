// The part of ONNX Runtime's C API that custom operators need. onnxruntime_c_api.h of microsoft/onnxruntime (MIT)
// documents each name.
//
// The API is a table of functions, and a function keeps its entry in all releases. Version 17 of the table, of ONNX
// Runtime 1.17, is the first with KernelContext_ParallelFor.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef _WIN32
#define ORT_API_CALL __stdcall
#define ORT_EXPORT __declspec(dllexport)
#else
#define ORT_API_CALL
#define ORT_EXPORT __attribute__((visibility("default")))
#endif

struct OrtStatus;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtCustomOp;

constexpr uint32_t ORT_API_VERSION = 17;
constexpr int ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_RUNTIME_EXCEPTION = 6;  // OrtErrorCode
constexpr int ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 = 3;
constexpr int INPUT_OUTPUT_REQUIRED = 0;
constexpr int OrtMemTypeDefault = 0;

struct OrtApi {
  using Entry = void*;
  OrtStatus*(ORT_API_CALL* CreateStatus)(int code, const char* message);  // entry 0
  Entry from_1[25];
  OrtStatus*(ORT_API_CALL* CreateCustomOpDomain)(const char* name, OrtCustomOpDomain** out);  // entry 26
  OrtStatus*(ORT_API_CALL* CustomOpDomain_Add)(OrtCustomOpDomain* domain, const OrtCustomOp* op);
  OrtStatus*(ORT_API_CALL* AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);
  Entry from_29[22];
  OrtStatus*(ORT_API_CALL* GetTensorMutableData)(OrtValue* value, void** out);  // entry 51
  Entry from_52[9];
  OrtStatus*(ORT_API_CALL* GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, size_t* out);  // entry 61
  OrtStatus*(ORT_API_CALL* GetDimensions)(const OrtTensorTypeAndShapeInfo* info, int64_t* values, size_t count);
  Entry from_63[1];
  OrtStatus*(ORT_API_CALL* GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo* info, size_t* out);  // entry 64
  OrtStatus*(ORT_API_CALL* GetTensorTypeAndShape)(const OrtValue* value, OrtTensorTypeAndShapeInfo** out);
  Entry from_66[19];
  OrtStatus*(ORT_API_CALL* KernelInfoGetAttribute_float)(const OrtKernelInfo* info, const char* name,
                                                         float* out);  // entry 85
  OrtStatus*(ORT_API_CALL* KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name, int64_t* out);
  Entry from_87[3];
  OrtStatus*(ORT_API_CALL* KernelContext_GetInput)(const OrtKernelContext* context, size_t index,
                                                   const OrtValue** out);  // entry 90
  OrtStatus*(ORT_API_CALL* KernelContext_GetOutput)(OrtKernelContext* context, size_t index, const int64_t* shape,
                                                    size_t dimensions, OrtValue** out);
  Entry from_92[1];
  void(ORT_API_CALL* ReleaseStatus)(OrtStatus* status);  // entry 93
  Entry from_94[5];
  void(ORT_API_CALL* ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);  // entry 99
  Entry from_100[149];
  OrtStatus*(ORT_API_CALL* KernelInfoGetConstantInput_tensor)(const OrtKernelInfo* info, size_t index, int* is_constant,
                                                              const OrtValue** out);  // entry 249
  Entry from_250[24];
  OrtStatus*(ORT_API_CALL* KernelContext_ParallelFor)(const OrtKernelContext* context,
                                                      void (*task)(void* user_data, size_t index), size_t count,
                                                      size_t batches, void* user_data);  // entry 274
};
static_assert(offsetof(OrtApi, KernelContext_ParallelFor) == 274 * sizeof(void*), "a gap of the table is wrong");

struct OrtApiBase {
  const OrtApi*(ORT_API_CALL* GetApi)(uint32_t version);  // null: the runtime is older
  const char*(ORT_API_CALL* GetVersionString)();
};

// Version 16 of an operator: the first with CreateKernelV2.
constexpr uint32_t ORT_CUSTOM_OP_VERSION = 16;
struct OrtCustomOp {
  uint32_t version;
  void*(ORT_API_CALL* CreateKernel)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info);
  const char*(ORT_API_CALL* GetName)(const OrtCustomOp* op);
  const char*(ORT_API_CALL* GetExecutionProviderType)(const OrtCustomOp* op);
  int(ORT_API_CALL* GetInputType)(const OrtCustomOp* op, size_t index);
  size_t(ORT_API_CALL* GetInputTypeCount)(const OrtCustomOp* op);
  int(ORT_API_CALL* GetOutputType)(const OrtCustomOp* op, size_t index);
  size_t(ORT_API_CALL* GetOutputTypeCount)(const OrtCustomOp* op);
  void(ORT_API_CALL* KernelCompute)(void* kernel, OrtKernelContext* context);
  void(ORT_API_CALL* KernelDestroy)(void* kernel);
  int(ORT_API_CALL* GetInputCharacteristic)(const OrtCustomOp* op, size_t index);
  int(ORT_API_CALL* GetOutputCharacteristic)(const OrtCustomOp* op, size_t index);
  int(ORT_API_CALL* GetInputMemoryType)(const OrtCustomOp* op, size_t index);
  int(ORT_API_CALL* GetVariadicInputMinArity)(const OrtCustomOp* op);
  int(ORT_API_CALL* GetVariadicInputHomogeneity)(const OrtCustomOp* op);
  int(ORT_API_CALL* GetVariadicOutputMinArity)(const OrtCustomOp* op);
  int(ORT_API_CALL* GetVariadicOutputHomogeneity)(const OrtCustomOp* op);
  OrtStatus*(ORT_API_CALL* CreateKernelV2)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                                           void** kernel);
  OrtStatus*(ORT_API_CALL* KernelComputeV2)(void* kernel, OrtKernelContext* context);
};

extern "C" ORT_EXPORT OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base);
