package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The names of the resource.
const (
	GroupName = "topology.heddle.dev"
	Version   = "v1alpha1"
	Kind      = "NodeTopology"
	Plural    = "nodetopologies"
)

// GroupVersion is topology.heddle.dev/v1alpha1.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: Version}
}

// Resource returns the resource for dynamic clients.
func Resource() schema.GroupVersionResource {
	return GroupVersion().WithResource(Plural)
}

// AddToScheme registers the resource and its list.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &NodeTopology{}, &NodeTopologyList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
