// Run an exported model in several threads with OpenVINO's C++ API: labels of a segmentor, or objects of a detector.
//
//     deployed MODEL HEIGHT WIDTH THREADS [EXTENSION] < PIXELS
//
// PIXELS are the BGR pixels of consecutive pictures, resized to HEIGHT and WIDTH by the rule of deploy.json. The program
// pads pictures for a model of one size. The result of a segmentor is a byte for each pixel: the label. The result of a
// detector is a line for each object: picture, class, score, box, and the number of pixels of the mask for models with
// masks. EXTENSION is openvino_operators.cpp, compiled, for models of `--operators swin`.
#include <openvino/openvino.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

using Picture = std::vector<uint8_t>;

static std::string labels(ov::InferRequest& request) {
    const auto labels = request.get_tensor("labels");
    return {static_cast<const char*>(labels.data()), labels.get_byte_size()};
}

static std::string objects(ov::InferRequest& request, bool has_masks, size_t index, size_t pixels) {
    const auto boxes = request.get_tensor("boxes"), scores = request.get_tensor("scores"),
               labels = request.get_tensor("labels");
    const auto masks = has_masks ? request.get_tensor("masks") : ov::Tensor();  // (n, height, width), 0 or 1
    std::string lines;
    for (size_t n = 0; n < scores.get_size(); ++n) {
        if (scores.data<float>()[n] < 0.3f) continue;
        const float* box = boxes.data<float>() + 4 * n;  // x1 y1 x2 y2, in pixels
        char line[200];
        std::snprintf(line, sizeof line, "%zu %lld %.3f %.1f %.1f %.1f %.1f", index,
                      static_cast<long long>(labels.data<int64_t>()[n]), scores.data<float>()[n], box[0], box[1],
                      box[2], box[3]);
        lines += line;
        if (has_masks) {
            const auto* mask = static_cast<const uint8_t*>(masks.data()) + n * pixels;
            lines += " " + std::to_string(std::count(mask, mask + pixels, 1));
        }
        lines += "\n";
    }
    return lines;
}

int main(int argc, char** argv) {
    if (argc < 5) return std::fprintf(stderr, "usage: deployed MODEL HEIGHT WIDTH THREADS [EXTENSION] < PIXELS\n"), 2;
    int64_t own_size[] = {std::atoll(argv[2]), std::atoll(argv[3])};
    const size_t height = own_size[0], width = own_size[1];
    ov::Core core;
    if (argc > 5) core.add_extension(argv[5]);
    // Without the hint, a CPU with matrix units computes in bf16. Threads of an extension inherit the CPUs of OpenVINO's.
    auto model = core.compile_model(argv[1], "CPU", ov::hint::inference_precision(ov::element::f32),
                                    ov::hint::enable_cpu_pinning(argc <= 5));
    bool has_boxes = false, has_masks = false;
    for (const auto& output : model.outputs()) {
        has_boxes |= output.get_names().count("boxes") > 0;
        has_masks |= output.get_names().count("masks") > 0;
    }
    const auto shape = model.input("picture").get_partial_shape();  // {batch, height, width, 3}, some of them free
    const size_t rows = shape[1].is_static() ? shape[1].get_length() : height,
                 columns = shape[2].is_static() ? shape[2].get_length() : width;
    if (height > rows || width > columns) return std::fprintf(stderr, "the model takes %zux%zu\n", rows, columns), 2;
    std::vector<Picture> pictures;
    for (Picture one(height * width * 3); std::fread(one.data(), 1, one.size(), stdin) == one.size();) {
        pictures.emplace_back(rows * columns * 3);  // padded on the right and at the bottom
        for (size_t y = 0; y < height; ++y)
            std::copy_n(&one[y * width * 3], width * 3, &pictures.back()[y * columns * 3]);
    }
    std::vector<std::string> results(pictures.size());
    std::atomic<size_t> next{0};
    auto work = [&] {  // a request has the tensors of one run, so every thread makes a request
        auto request = model.create_infer_request();
        for (size_t index; (index = next++) < pictures.size();) {
            request.set_tensor("picture", ov::Tensor(ov::element::u8, {1, rows, columns, 3}, pictures[index].data()));
            request.set_tensor("size", ov::Tensor(ov::element::i64, {2}, own_size));
            request.infer();
            results[index] = has_boxes ? objects(request, has_masks, index, height * width) : labels(request);
        }
    };
    std::vector<std::thread> threads;
    for (int count = std::atoi(argv[4]); count > 0; --count) threads.emplace_back(work);
    for (auto& thread : threads) thread.join();
    for (const auto& result : results) std::fwrite(result.data(), 1, result.size(), stdout);
}
