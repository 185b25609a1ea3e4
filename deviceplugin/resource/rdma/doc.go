// Package rdma hands out HCAs: it says what a node's RDMA resources are made
// of and serves each of them to the kubelet.
//
// The number that a pod asks for is a number of HCAs. A device ID is a ticket,
// an HCA and a slot on it, so that several pods can share an HCA and every ID
// has one holder. Which HCAs a container really gets is decided when it
// starts, beside its GPUs, by the binder: the package itself opens no device,
// writes no file, and knows nothing of pods.
package rdma
