package kubelet

// Pod refers to a pod. UID is empty where only PodResources named it, Namespace
// and Name where only the kubelet's checkpoint did.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// Same reports whether two references can be to one pod: no part that both have
// differs, and they share one that distinguishes pods.
func (p Pod) Same(q Pod) bool {
	named := p.Name != "" && q.Name != ""
	if named && (p.Namespace != q.Namespace || p.Name != q.Name) {
		return false
	}
	if p.UID != "" && q.UID != "" {
		return p.UID == q.UID
	}
	return named
}

// String is namespace/name, or the UID.
func (p Pod) String() string {
	if p.Name == "" {
		return "pod " + p.UID
	}
	return p.Namespace + "/" + p.Name
}

// Container refers to a container. The pod's name is Container.Pod.Name.
type Container struct {
	Pod
	Name string `json:"container"`
}

// Same reports whether two references can be to one container.
func (c Container) Same(d Container) bool { return c.Name == d.Name && c.Pod.Same(d.Pod) }

// String is "container main of default/train".
func (c Container) String() string { return "container " + c.Name + " of " + c.Pod.String() }

// withoutUID is the reference as PodResources has it.
func (c Container) withoutUID() Container {
	c.UID = ""
	return c
}
