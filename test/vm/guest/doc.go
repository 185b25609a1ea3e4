// Package guest is the side of package vm that runs inside: it makes a test
// binary an init.
//
// It mounts, loads modules and makes soft RDMA links, and it does so only in a
// guest of package vm: anywhere else it fails.
package guest
