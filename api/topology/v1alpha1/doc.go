// Package v1alpha1 holds the NodeTopology resource of topology.heddle.dev, in
// which a node reports where its cables end, and Group, the node of the tree
// that GET /node_group answers. It owns their shapes and bounds; it reads no
// hardware, groups nothing and talks to no API server.
//
// +kubebuilder:object:generate=true
// +groupName=topology.heddle.dev
package v1alpha1

//go:generate go tool -modfile=../../../tools/controllergen/go.mod controller-gen object crd:maxDescLen=400 paths=. output:object:dir=. output:crd:dir=../../../deploy/helm/heddle/crds
