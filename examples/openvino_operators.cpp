// The nodes of domain `swin` for OpenVINO's C++ API: an extension for one release of OpenVINO. It calls the library in
// the exported folder.
//
//     core.add_extension("libswin_openvino.so");
#include <openvino/core/extension.hpp>
#include <openvino/frontend/onnx/extension/conversion.hpp>
#include <openvino/openvino.hpp>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runtimes/operators.h"

using Operator = std::shared_ptr<swin_operator>;  // shared by the copies of a node

static void check(const char* error) { OPENVINO_ASSERT(!error, error); }

static std::vector<int64_t> output_shape(const Operator& made, const ov::Shape& shape) {
    const std::vector<int64_t> input(shape.begin(), shape.end());
    std::vector<int64_t> output(4);
    check(swin_operator_shape(made.get(), input.data(), output.data()));
    return output;
}

class Node : public ov::op::Op {
public:
    OPENVINO_OP("Node", "swin");
    Node() = default;
    Node(const ov::Output<ov::Node>& x, Operator made, ov::PartialShape free_shape)
        : Op({x}), made(std::move(made)), free_shape(std::move(free_shape)) {
        constructor_validate_and_infer_types();
    }
    void validate_and_infer_types() override {
        const auto shape = get_input_partial_shape(0);
        auto output = free_shape;
        if (shape.is_static()) {
            const auto sides = output_shape(made, shape.to_shape());
            output = ov::PartialShape(std::vector<ov::Dimension>(sides.begin(), sides.end()));
        }
        set_output_type(0, ov::element::f32, output);
    }
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        return std::make_shared<Node>(inputs[0], made, free_shape);
    }
    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        auto number = reinterpret_cast<int64_t>(made.get());  // nodes of one input are not equal
        visitor.on_attribute("made", number);
        return true;
    }
    bool has_evaluate() const override { return true; }
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const auto shape = inputs[0].get_shape();
        const auto sides = output_shape(made, shape);
        outputs[0].set_shape(ov::Shape(sides.begin(), sides.end()));
        const std::vector<int64_t> input(shape.begin(), shape.end());
        const auto threads = std::clamp(std::thread::hardware_concurrency(), 1U, 1024U);
        check(swin_operator_run(made.get(), input.data(), inputs[0].data<const float>(),
                                static_cast<int32_t>(threads), outputs[0].data<float>()));
        return true;
    }

private:
    Operator made;
    ov::PartialShape free_shape;
};

static ov::OutputVector convert(const std::string& kind, const ov::frontend::NodeContext& context) {
    std::vector<double> attributes;
    int64_t channels = 0;
    std::istringstream names(swin_operator_attributes(kind.c_str()));
    for (std::string name; names >> name;) {
        const bool is_float = name.find("eps") != std::string::npos || name.find("scale") != std::string::npos;
        attributes.push_back(is_float ? context.get_attribute<float>(name)
                                      : static_cast<double>(context.get_attribute<int64_t>(name)));
        if (name == "channels" || name == "outputs") channels = static_cast<int64_t>(attributes.back());
    }
    std::vector<const void*> weights;
    std::vector<int64_t> counts;
    std::istringstream weight_names(swin_operator_weights(kind.c_str()));
    for (std::string name; weight_names >> name;) {
        const auto input = context.get_input(static_cast<int>(weights.size() + 1));
        const auto constant = ov::as_type_ptr<ov::op::v0::Constant>(input.get_node_shared_ptr());
        const auto type = name.find("_int8") == std::string::npos ? ov::element::f32 : ov::element::i8;
        OPENVINO_ASSERT(constant && constant->get_element_type() == type, name, " must be an initializer of ", type);
        weights.push_back(constant->get_data_ptr());
        counts.push_back(static_cast<int64_t>(ov::shape_size(constant->get_shape())));
    }
    swin_operator* made = nullptr;
    check(swin_operator_create(kind.c_str(), attributes.data(), weights.data(), counts.data(), &made));
    ov::PartialShape free_shape(std::vector<ov::Dimension>(4));
    free_shape[kind == "OutputNorm" ? 1 : 3] = channels;
    return std::make_shared<Node>(context.get_input(0), Operator(made, swin_operator_free), free_shape)->outputs();
}

static std::vector<ov::Extension::Ptr> extensions() {
    std::vector<ov::Extension::Ptr> all;
    std::istringstream kinds(swin_operator_kinds());
    for (std::string kind; kinds >> kind;)
        all.push_back(std::make_shared<ov::frontend::onnx::ConversionExtension>(
            kind, "swin", [kind](const ov::frontend::NodeContext& context) { return convert(kind, context); }));
    return all;
}
OPENVINO_CREATE_EXTENSIONS(extensions())
