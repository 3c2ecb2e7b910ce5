// The Python module: makes backends for torch.distributed.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "backend.hpp"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  namespace py = pybind11;
  using atoll_torch::Backend;
  py::module_::import("torch.distributed");
  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(m, "Backend")
      .def("close", &Backend::close, py::call_guard<py::gil_scoped_release>());
  m.def(
      "open",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::string name,
         std::vector<int64_t> global_ranks, std::chrono::milliseconds timeout,
         bool is_reconfigurable) {
        return c10::make_intrusive<Backend>(atoll_torch::GroupOptions{store,
                                                                      rank,
                                                                      size,
                                                                      std::move(name),
                                                                      std::move(global_ranks),
                                                                      timeout,
                                                                      {},
                                                                      is_reconfigurable});
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("name"), py::arg("global_ranks"),
      py::arg("timeout"), py::arg("is_reconfigurable"), py::call_guard<py::gil_scoped_release>(),
      "Opens the backend of a group. Collective over its ranks.");
}
