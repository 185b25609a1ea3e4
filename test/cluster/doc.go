// Package cluster runs a real Kubernetes of one node on this machine: etcd, the
// API server, the controllers, the scheduler, a kubelet and containerd, all built
// from Go modules. It serves the end-to-end tests and the demo.
//
// It owns everything below its cache directory, and, while a cluster is up, one
// cgroup root, one mount and one network namespace per cluster. It never installs
// anything on the machine, never touches a process, mount or cgroup of others,
// and Down leaves nothing outside the cache. Several clusters may run at once; the sysctls that
// kubelets set are the machine's again when they come down in the reverse order.
//
// The machine has to be Linux with root; systemd and a container engine are not
// needed. cgroup v1 is what it is tested on; cgroup v2 is best effort.
package cluster
