// Gradients of plain loops: each number records the two operands of its operation.
#pragma once

#include <cmath>
#include <vector>

struct Node {
  int a, b;           // indices of the operands; -1: a constant
  double by_a, by_b;  // derivatives with respect to a and b
};
inline std::vector<Node> tape;

struct Var {
  double value;
  int node = -1;
  Var(double value = 0) : value(value) {}
  Var(double value, const Var& a, double by_a, const Var& b = 0, double by_b = 0) : value(value) {
    if (a.node < 0 && b.node < 0) return;
    node = static_cast<int>(tape.size());
    tape.push_back({a.node, b.node, by_a, by_b});
  }
  // A leaf: `gradients` computes the derivative with respect to the number.
  static Var leaf(double value) {
    Var made(value);
    made.node = static_cast<int>(tape.size());
    tape.push_back({-1, -1, 0, 0});
    return made;
  }
};
inline Var operator+(Var a, Var b) { return {a.value + b.value, a, 1, b, 1}; }
inline Var operator-(Var a, Var b) { return {a.value - b.value, a, 1, b, -1}; }
inline Var operator*(Var a, Var b) { return {a.value * b.value, a, b.value, b, a.value}; }
inline Var operator/(Var a, Var b) { return {a.value / b.value, a, 1 / b.value, b, -a.value / (b.value * b.value)}; }
inline Var exp(Var a) { return {std::exp(a.value), a, std::exp(a.value)}; }
inline Var sqrt(Var a) { return {std::sqrt(a.value), a, 0.5 / std::sqrt(a.value)}; }
inline Var erf(Var a) { return {std::erf(a.value), a, 2 / std::sqrt(std::acos(-1.0)) * std::exp(-a.value * a.value)}; }
inline double value_of(double a) { return a; }
inline double value_of(Var a) { return a.value; }

// The gradients of `of` with respect to every number on the tape.
inline std::vector<double> gradients(Var of) {
  std::vector<double> found(tape.size(), 0.0);
  if (of.node >= 0) found[of.node] = 1;
  for (size_t i = tape.size(); i-- > 0;) {
    if (tape[i].a >= 0) found[tape[i].a] += found[i] * tape[i].by_a;
    if (tape[i].b >= 0) found[tape[i].b] += found[i] * tape[i].by_b;
  }
  return found;
}
