package doctor

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/checks"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// expectation is a resource that a Node should offer, by its labels.
type expectation struct {
	resource string
	// devices is the number in the labels, as written, or empty.
	devices string
}

// expectations lists the resources of the configuration. The labels count all devices, so nothing
// is expected where the configuration allocates them differently: shared or cut GPUs, HCAs chosen
// by more than their role.
func expectations(node *corev1.Node, cfg *config.NodeConfig) []expectation {
	d := cfg.Domains
	count := func(key string) string {
		if n := node.Labels[key]; n != "0" {
			return n
		}
		return ""
	}
	gpus := count(d.GPUKey(wellknown.GPUCount))
	exclusive, shared := gpus, gpus
	switch node.Labels[d.GPUKey(wellknown.GPUSharingStrategy)] {
	case "sgpu":
		exclusive = ""
	case "none":
		shared = ""
	}
	if node.Labels[d.GPUKey(wellknown.GPUReplicas)] == "0" {
		exclusive = "" // All cut by MIG.
	}
	all := []expectation{{cfg.Resources.GPU, exclusive}}
	if cfg.Mode == config.ModeSGPU {
		all = append(all, expectation{cfg.Resources.SGPU, shared})
	}
	for i := range cfg.RDMA.Resources {
		r := &cfg.RDMA.Resources[i]
		e := expectation{resource: r.Name}
		if fabricOnly(r.Selectors) {
			e.devices = count(wellknown.RDMACount)
		}
		all = append(all, e)
	}
	return all
}

// fabricOnly reports whether a selector takes what the label counts: the HCAs of
// role fabric, all of them.
func fabricOnly(s config.Selectors) bool {
	return reflect.DeepEqual(s, config.Selectors{Roles: []machine.Role{machine.RoleFabric}})
}

// check explains a resource that is missing, zero or reduced. That it is not
// registered is a problem where heddle-device-plugin runs.
func (e expectation) check(l *checks.List, node *corev1.Node, plugin bool) {
	const onNode = "Run heddle doctor on the node: it shows what is wrong with each device."
	key := corev1.ResourceName(e.resource)
	capacity, known := node.Status.Capacity[key]
	allocatable := node.Status.Allocatable[key]
	subject := "resource " + e.resource
	switch {
	case e.devices == "" && capacity.IsZero():
	case !known && !plugin:
		l.Note(subject, "", "is not advertised: no heddle-device-plugin runs here; the Node's labels count %s devices",
			e.devices)
	case !known:
		l.Problem(subject, "heddle-device-plugin runs here and has not registered it with the kubelet: see its log.",
			"is not advertised, though the Node's labels count %s devices", e.devices)
	case capacity.IsZero():
		l.Problem(subject, onNode, "is 0, though the Node's labels count %s devices: a device plugin registered it "+
			"and lists none", e.devices)
	case allocatable.IsZero():
		l.Problem(subject, onNode, "has capacity %s and allocatable 0: every device is unhealthy", capacity.String())
	case allocatable.Cmp(capacity) < 0:
		l.Problem(subject, onNode, "has allocatable %s of %s: the others are unhealthy",
			allocatable.String(), capacity.String())
	}
	counts, err := allocation.ParseHCACounts(node.Annotations[wellknown.HCACounts])
	if err != nil {
		return // It has none, or the version of another heddle's.
	}
	if n := counts.HCAs[e.resource]; n > 0 && capacity.Value() > int64(n) {
		l.Note(subject, "", "%d HCAs, up to %d containers each: capacity %s counts places, and a container gets %d HCAs "+
			"at most", n, capacity.Value()/int64(n), capacity.String(), n)
	}
}

// resourceNames are names of resources; an empty gpu and nil hcas are not known
// to differ from the built-in ones.
type resourceNames struct {
	gpu  string
	hcas []string
	// guessed is whether they come from what a Node offers.
	guessed bool
}

// namesServed returns the names of the resources that the device plugin serves.
func namesServed(p *report.Report) resourceNames {
	n := resourceNames{hcas: []string{}}
	for i := range p.Resources {
		switch r := &p.Resources[i]; {
		case r.Former, strings.Contains(r.Name, "/mig-"):
		case r.Kind == report.KindGPU:
			n.gpu = r.Name
		case r.Kind == report.KindHCA:
			n.hcas = append(n.hcas, r.Name)
		}
	}
	return n
}

// namesOffered guesses from what a Node offers: where it has no resource of a
// built-in name, the only one that ends in /gpu is the GPUs', and those of the
// domain rdma are the HCAs'.
func namesOffered(node *corev1.Node) resourceNames {
	built := config.Default()
	has := func(name string) bool { _, ok := node.Status.Capacity[corev1.ResourceName(name)]; return ok }
	n := resourceNames{guessed: true}
	var gpus []string
	for _, key := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		name := string(key)
		if strings.HasSuffix(name, "/gpu") {
			gpus = append(gpus, name)
		}
		if strings.HasPrefix(name, "rdma/") && !has(built.RDMA.Resources[0].Name) {
			n.hcas = append(n.hcas, name)
		}
	}
	if len(gpus) == 1 && !has(built.Resources.GPU) {
		n.gpu = gpus[0]
	}
	return n
}

// check reports that names were guessed, if any were.
func (n resourceNames) check(l *checks.List) {
	all := n.hcas
	if n.gpu != "" {
		all = append([]string{n.gpu}, all...)
	}
	if len(all) > 0 && n.guessed {
		l.Note("configuration", "--config DIR gives the configuration, with the names.",
			"is not given; by what the Node offers its resources are %s", strings.Join(all, ", "))
	}
}
