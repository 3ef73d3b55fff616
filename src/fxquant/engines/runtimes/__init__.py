"""Other runtimes that execute a converted graph: ONNX Runtime and OpenVINO."""
