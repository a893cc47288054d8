// The operators of operators.h in ONNX Runtime, as domain `swin`.

#include "runtimes/onnxruntime.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "machine/threads.h"
#include "runtimes/operators.h"

namespace {

// An error of the runtime, on its way to the caller, who frees it.
struct Failure {
  OrtStatus* status;
};

void check(OrtStatus* status) {
  if (status) throw Failure{status};
}
void check(const OrtApi& api, const char* error, int code) {
  if (error) throw Failure{api.CreateStatus(code, error)};
}

template <class F>
OrtStatus* catch_errors(const OrtApi& api, const F& f) {
  try {
    f();
    return nullptr;
  } catch (const Failure& failure) {
    return failure.status;
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
  }
}

std::vector<std::string> split(const char* names) {
  std::istringstream stream(names);
  std::vector<std::string> parts;
  for (std::string name; stream >> name;) parts.push_back(name);
  return parts;
}

class TensorInfo {
 public:
  TensorInfo(const OrtApi& api, const OrtValue* value) : api(api) { check(api.GetTensorTypeAndShape(value, &info)); }
  TensorInfo(const TensorInfo&) = delete;
  TensorInfo& operator=(const TensorInfo&) = delete;
  ~TensorInfo() { api.ReleaseTensorTypeAndShapeInfo(info); }

  int64_t count() const {
    size_t count = 0;
    check(api.GetTensorShapeElementCount(info, &count));
    return static_cast<int64_t>(count);
  }
  std::array<int64_t, 4> shape() const {
    size_t dimensions = 0;
    check(api.GetDimensionsCount(info, &dimensions));
    if (dimensions != 4) check(api, "the input must have 4 dimensions", ORT_INVALID_ARGUMENT);
    std::array<int64_t, 4> shape{};
    check(api.GetDimensions(info, shape.data(), shape.size()));
    return shape;
  }

 private:
  const OrtApi& api;
  OrtTensorTypeAndShapeInfo* info = nullptr;
};

void* data_of(const OrtApi& api, const OrtValue* value) {
  void* first = nullptr;
  check(api.GetTensorMutableData(const_cast<OrtValue*>(value), &first));
  return first;
}

// The parts of a call share the session's threads: the library starts no threads beside the session's pool.
struct SessionThreads {
  const OrtApi& api;
  OrtKernelContext* context;

  static void run(void* self, int64_t count, void (*work)(void*), void* job) {
    const auto& [api, context] = *static_cast<SessionThreads*>(self);
    std::pair<void (*)(void*), void*> part{work, job};
    const auto run_part = [](void* given, size_t) {
      const auto& [work, job] = *static_cast<std::pair<void (*)(void*), void*>*>(given);
      work(job);
    };
    if (OrtStatus* status = api.KernelContext_ParallelFor(context, run_part, static_cast<size_t>(count), 0, &part))
      api.ReleaseStatus(status);  // the caller of `run` does the work that is left
  }
};

class Kernel {
 public:
  Kernel(const OrtApi& api, const OrtKernelInfo* info, const char* kind) : api(api) {
    std::vector<double> attributes;
    for (const std::string& name : split(swin_operator_attributes(kind))) {
      if (name.find("eps") != std::string::npos || name.find("scale") != std::string::npos) {
        float value = 0;
        check(api.KernelInfoGetAttribute_float(info, name.c_str(), &value));
        attributes.push_back(value);
      } else {
        int64_t value = 0;
        check(api.KernelInfoGetAttribute_int64(info, name.c_str(), &value));
        attributes.push_back(static_cast<double>(value));
      }
    }
    std::vector<const void*> weights;
    std::vector<int64_t> counts;
    for (const std::string& name : split(swin_operator_weights(kind))) {
      int is_constant = 0;
      const OrtValue* value = nullptr;
      check(api.KernelInfoGetConstantInput_tensor(info, weights.size() + 1, &is_constant, &value));
      if (!is_constant || !value) check(api, (name + " must be an initializer").c_str(), ORT_INVALID_ARGUMENT);
      counts.push_back(TensorInfo(api, value).count());
      weights.push_back(data_of(api, value));
    }
    check(api, swin_operator_create(kind, attributes.data(), weights.data(), counts.data(), &made),
          ORT_INVALID_ARGUMENT);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  ~Kernel() { swin_operator_free(made); }

  OrtStatus* compute(OrtKernelContext* context) const {
    return catch_errors(api, [&] {
      const OrtValue* x = nullptr;
      check(api.KernelContext_GetInput(context, 0, &x));
      const std::array<int64_t, 4> shape = TensorInfo(api, x).shape();
      std::array<int64_t, 4> output_shape{};
      check(api, swin_operator_shape(made, shape.data(), output_shape.data()), ORT_INVALID_ARGUMENT);
      OrtValue* y = nullptr;
      check(api.KernelContext_GetOutput(context, 0, output_shape.data(), output_shape.size(), &y));
      SessionThreads session{api, context};
      const swin::HostThreads host(SessionThreads::run, &session);
      const auto* from = static_cast<const float*>(data_of(api, x));
      check(api, swin_operator_run(made, shape.data(), from, most_threads(), static_cast<float*>(data_of(api, y))),
            ORT_RUNTIME_EXCEPTION);
    });
  }

 private:
  // An upper limit: the session's pool may be smaller.
  static int32_t most_threads() {
    static const unsigned cores = std::thread::hardware_concurrency();
    return static_cast<int32_t>(std::clamp(cores, 1U, 1024U));
  }

  const OrtApi& api;
  swin_operator* made = nullptr;
};

struct Operator : OrtCustomOp {
  std::string kind;
  std::vector<std::string> weights;

  explicit Operator(const std::string& name)
      : OrtCustomOp{}, kind(name), weights(split(swin_operator_weights(name.c_str()))) {
    version = ORT_CUSTOM_OP_VERSION;
    GetName = [](const OrtCustomOp* op) { return static_cast<const Operator*>(op)->kind.c_str(); };
    GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
    GetOutputType = [](const OrtCustomOp*, size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
    GetInputType = [](const OrtCustomOp* op, size_t index) {
      const std::string name = index ? static_cast<const Operator*>(op)->weights[index - 1] : "x";
      return name.find("_int8") == std::string::npos ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
                                                     : ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
    };
    GetInputTypeCount = [](const OrtCustomOp* op) { return 1 + static_cast<const Operator*>(op)->weights.size(); };
    GetOutputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
    GetInputCharacteristic = GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
    CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
      return catch_errors(*api,
                          [&] { *kernel = new Kernel(*api, info, static_cast<const Operator*>(op)->kind.c_str()); });
    };
    KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
      return static_cast<Kernel*>(kernel)->compute(context);
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  }
};

// Of the process: it outlives all sessions.
OrtCustomOpDomain* domain_of(const OrtApi& api) {
  static std::mutex mutex;
  static OrtCustomOpDomain* domain = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!domain) {
    OrtCustomOpDomain* made = nullptr;
    check(api.CreateCustomOpDomain("swin", &made));
    for (const std::string& kind : split(swin_operator_kinds()))
      check(api.CustomOpDomain_Add(made, new Operator(kind)));  // never freed
    domain = made;
  }
  return domain;
}

}  // namespace

OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (!api) {
    const OrtApi* oldest = base->GetApi(1);
    return oldest ? oldest->CreateStatus(ORT_FAIL, "the operators of domain swin need ONNX Runtime 1.17 or later")
                  : nullptr;
  }
  return catch_errors(*api, [&] {
    check(*api, swin_why_not(SWIN_FLOAT32), ORT_FAIL);
    check(api->AddCustomOpDomain(options, domain_of(*api)));
  });
}
