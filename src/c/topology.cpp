// The functions of atoll.h for topologies, meshes and their findings.
#include "atoll/topology.hpp"

#include "atoll/mesh.hpp"
#include "c/handles.hpp"

using namespace atoll::c;

namespace atoll_v1::atoll::c {
namespace {

void check_index(std::size_t index, std::size_t n, const char* what) {
  if (index < n) return;
  throw Error(ErrorCode::not_found, "there is no " + std::string(what) + " " +
                                        std::to_string(index) + " of " + std::to_string(n));
}

}  // namespace
}  // namespace atoll_v1::atoll::c

atoll_status atoll_topology_discover(atoll_world* world, atoll_topology** topology) {
  return create(topology, "topology",
                [&] { return atoll::Topology::discover(at(world, "world").world); });
}
atoll_status atoll_topology_discover_local(const char* host_id, atoll_topology** topology) {
  return create(topology, "topology",
                [&] { return atoll::Topology::discover_local(text_or_empty(host_id)); });
}
atoll_status atoll_topology_discover_ports(atoll_world* world, atoll_topology** topology) {
  return create(topology, "topology",
                [&] { return atoll::Topology::discover_ports(at(world, "world").world); });
}
atoll_status atoll_topology_from_json(const char* json, const char* source,
                                      atoll_topology** topology) {
  return create(topology, "topology", [&] {
    return atoll::Topology::from_json(text(json, "json"), text(source, "source"));
  });
}
atoll_status atoll_topology_to_json(const atoll_topology* topology, char** json) {
  return guard([&] { at(json, "json") = copy_of(at(topology, "topology").topology.to_json()); });
}
void atoll_topology_close(atoll_topology* topology) { release(topology); }

atoll_mesh::atoll_mesh(atoll::Mesh mesh_) : mesh(std::move(mesh_)), text(mesh.to_string()) {
  for (const atoll::Finding& finding : mesh.findings()) {
    lines.push_back(to_line(finding));
    std::string& all = subjects.emplace_back();
    for (const std::string& one : finding.subjects) all += (all.empty() ? "" : ", ") + one;
  }
}

atoll_status atoll_mesh_plan(const atoll_topology* topology, atoll_world* world,
                             const atoll_mesh_options* given, atoll_mesh** mesh) {
  return create(mesh, "mesh", [&] {
    const atoll_mesh_options wanted = options(given, "options");
    atoll::MeshPlanOptions plan{.emulated_islands = wanted.emulated_islands,
                                .tensor = wanted.tensor == 0 ? 1 : wanted.tensor};
    if (wanted.params != 0) plan.params = wanted.params;
    return atoll::Mesh::plan(at(topology, "topology").topology, at(world, "world").world, plan);
  });
}
atoll_status atoll_mesh_make(atoll_world* world, const atoll_axis* axes, size_t n,
                             const atoll_topology* topology, atoll_mesh** mesh) {
  return create(mesh, "mesh", [&] {
    std::vector<atoll::AxisSpec> specs;
    if (n > 0) at(axes, "axes");
    for (std::size_t i = 0; i < n; ++i)
      specs.push_back({text(axes[i].name, "axes"), static_cast<int>(axes[i].size)});
    atoll::World& job = at(world, "world").world;
    return topology != nullptr ? atoll::Mesh::make(job, std::move(specs), topology->topology)
                               : atoll::Mesh::make(job, std::move(specs));
  });
}
atoll_status atoll_mesh_text(const atoll_mesh* mesh, const char** text) {
  return guard([&] { at(text, "text") = at(mesh, "mesh").text.c_str(); });
}
atoll_status atoll_mesh_reason(const atoll_mesh* mesh, const char** reason) {
  return guard([&] { at(reason, "reason") = at(mesh, "mesh").mesh.reason().c_str(); });
}
atoll_status atoll_mesh_axis(const atoll_mesh* mesh, size_t index, atoll_axis* axis) {
  return guard([&] {
    const auto& axes = at(mesh, "mesh").mesh.axes();
    check_index(index, axes.size(), "axis");
    at(axis, "axis") = {axes[index].name.c_str(), axes[index].size};
  });
}
atoll_status atoll_mesh_ranks(const atoll_mesh* mesh, const char* axis, const int32_t** ranks,
                              int32_t* n, int32_t* index) {
  return guard([&] {
    const atoll::Axis& found = at(mesh, "mesh").mesh.axis(text(axis, "axis"));
    at(ranks, "ranks"), at(n, "n"), at(index, "index");
    *ranks = found.ranks.data();
    *n = found.size();
    *index = found.index;
  });
}
atoll_status atoll_mesh_finding(const atoll_mesh* mesh, size_t index, atoll_finding* finding) {
  return guard([&] {
    const auto& findings = at(mesh, "mesh").mesh.findings();
    check_index(index, findings.size(), "finding");
    fill(finding, "finding",
         atoll_finding{.size = 0,
                       .id = findings[index].id.c_str(),
                       .severity = static_cast<int32_t>(findings[index].severity),
                       .evidence = findings[index].evidence.c_str(),
                       .consequence = findings[index].consequence.c_str(),
                       .fix = findings[index].fix.c_str(),
                       .line = mesh->lines[index].c_str(),
                       .subjects = mesh->subjects[index].c_str()});
  });
}
void atoll_mesh_close(atoll_mesh* mesh) { release(mesh); }
