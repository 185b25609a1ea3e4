package doctor

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
)

// promise is a resource that a Node should offer, by its labels.
type promise struct {
	resource string
	// devices is how many the labels tell of, as written; empty if none.
	devices string
}

// promises lists the resources of the configuration. The labels count what is
// there, so they promise nothing where the configuration hands it out as
// something else: shared or cut cards, HCAs chosen by more than their role.
func promises(node *corev1.Node, cfg *config.NodeConfig) []promise {
	d := cfg.Domains
	count := func(key string) string {
		if n := node.Labels[key]; n != "0" {
			return n
		}
		return ""
	}
	cards := count(d.CardKey(wellknown.CardCount))
	whole, shared := cards, cards
	switch node.Labels[d.CardKey(wellknown.CardSharingStrategy)] {
	case "sgpu":
		whole = ""
	case "none":
		shared = ""
	}
	if node.Labels[d.CardKey(wellknown.CardReplicas)] == "0" {
		whole = "" // All cut by MIG.
	}
	all := []promise{{cfg.Resources.GPU, whole}}
	if cfg.Mode == config.ModeSGPU {
		all = append(all, promise{cfg.Resources.SGPU, shared})
	}
	for i := range cfg.RDMA.Resources {
		r := &cfg.RDMA.Resources[i]
		p := promise{resource: r.Name}
		if fabricOnly(r.Selectors) {
			p.devices = count(wellknown.RDMACount)
		}
		all = append(all, p)
	}
	return all
}

// fabricOnly tells whether a selector takes what the label counts: the HCAs of
// role fabric, all of them.
func fabricOnly(s config.Selectors) bool {
	fabric := config.Match{Roles: []config.RoleName{config.RoleName(machine.RoleFabric)}}
	return reflect.DeepEqual(s, config.Selectors{Match: fabric})
}

// kept explains a resource that is missing, zero or reduced. That nobody
// registered it is a problem where our device plugin should have.
func (p promise) kept(node *corev1.Node, plugin bool) []finding.Finding {
	key := corev1.ResourceName(p.resource)
	capacity, known := node.Status.Capacity[key]
	allocatable := node.Status.Allocatable[key]
	f := finding.Finding{Level: finding.Problem, Subject: "resource " + p.resource}
	switch {
	case p.devices == "" && capacity.IsZero():
		return nil
	case !known && !plugin:
		f.Level = finding.Note
		f.Message = "is not advertised: no heddle-device-plugin runs here; the Node's labels tell of " + p.devices + " devices"
	case !known:
		f.Message = "is not advertised, though the Node's labels tell of " + p.devices + " devices"
		f.Remedy = "heddle-device-plugin runs here and has not registered it with the kubelet: see its log."
	case capacity.IsZero():
		f.Message = "is 0, though the Node's labels tell of " + p.devices +
			" devices: a device plugin registered it and lists none"
		f.Remedy = "Run heddle doctor on the node: it says why each device is left out."
	case allocatable.IsZero():
		f.Message = fmt.Sprintf("has capacity %s and allocatable 0: every device is unhealthy", capacity.String())
		f.Remedy = "Run heddle doctor on the node: it says what is wrong with each device."
	case allocatable.Cmp(capacity) < 0:
		f.Message = fmt.Sprintf("has allocatable %s of %s: the others are unhealthy", allocatable.String(), capacity.String())
		f.Remedy = "Run heddle doctor on the node: it says what is wrong with each device."
	default:
		return nil
	}
	return []finding.Finding{f}
}
