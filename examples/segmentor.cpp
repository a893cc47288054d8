// A segmentor of free sizes that tools/export.py wrote, through ONNX Runtime's C++ API: BGR pixels in, labels out.
#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {  // MODEL.onnx HEIGHT WIDTH, and BGR pixels on standard input
    const int64_t height = std::atoll(argv[2]), width = std::atoll(argv[3]);
    std::vector<uint8_t> pixels(height * width * 3);
    if (std::fread(pixels.data(), 1, pixels.size(), stdin) != pixels.size()) return 1;
    int64_t own_size[] = {height, width};

    Ort::Env env;
    Ort::SessionOptions options;
    Ort::Session session(env, argv[1], options);
    auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    const int64_t picture_shape[] = {1, height, width, 3}, size_shape[] = {2};
    Ort::Value inputs[] = {
        Ort::Value::CreateTensor<uint8_t>(memory, pixels.data(), pixels.size(), picture_shape, 4),
        Ort::Value::CreateTensor<int64_t>(memory, own_size, 2, size_shape, 1),
    };
    const char *names[] = {"picture", "size"}, *wanted[] = {"labels"};
    auto outputs = session.Run(Ort::RunOptions{}, names, inputs, 2, wanted, 1);
    const auto* labels = outputs[0].GetTensorData<uint8_t>();
    std::fwrite(labels, 1, height * width, stdout);
}
