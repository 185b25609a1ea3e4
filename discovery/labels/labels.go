// Package labels decides which labels and taints a Node gets: a pure function
// of the machine and the node's configuration.
//
// Equal machines give equal labels, in whatever order their devices are
// listed. Values are always valid. The labels describe what the machine has; a
// GPU that is lost still counts, since health changes by the minute and the
// device plugin reports it. The package writes nothing; see discovery/nodesync.
package labels

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Result has the labels and taints that a Node should carry.
type Result struct {
	// Labels are never nil.
	Labels map[string]string
	Taints []corev1.Taint
	// Problems are labels that could not be made, sorted by key.
	Problems []Problem
}

// Problem is a label that is missing, and why.
type Problem struct {
	Key, Reason string
}

// Compute decides the labels and taints of a machine. c is complete; see
// [config.NodeConfig.Complete]. vendors are the supported ones; the one of
// most GPUs decides which groups of labels there are.
func Compute(m *machine.Machine, c *config.NodeConfig, vendors gpu.Vendors) Result {
	m = c.WithRoles(c.Serving(m))
	b := &builder{machine: c.Own(m), config: c, domains: c.Domains, vendors: vendors, labels: map[string]string{}}
	b.gpus()
	for _, other := range c.Others {
		o := &builder{machine: other.Own(m), config: other, domains: other.Domains, vendors: vendors, labels: b.labels}
		o.gpus()
		b.problems = append(b.problems, o.problems...)
	}
	b.rdma()
	b.node()
	b.rules()
	slices.SortFunc(b.problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Reason, b.Reason))
	})
	return Result{Labels: b.labels, Taints: b.taints(), Problems: b.problems}
}

type builder struct {
	machine  *machine.Machine
	config   *config.NodeConfig
	domains  wellknown.Domains
	vendors  gpu.Vendors
	labels   map[string]string
	problems []Problem
}

// set sets a label to any text, made valid. An empty text sets no label.
func (b *builder) set(key, value string) {
	if value = wellknown.Value(value); value != "" {
		b.labels[key] = value
	}
}

func (b *builder) problem(key, reason string) {
	b.problems = append(b.problems, Problem{Key: key, Reason: reason})
}

// node sets what the operator decided.
func (b *builder) node() {
	b.set(b.domains.Usage(), string(b.config.Usage))
	if b.config.ControlPlane {
		b.set(b.domains.ControlPlane(), "true")
	}
}

// rules evaluates the operator's rules. They cannot replace a label of
// heddle's: the configuration rejects such keys.
func (b *builder) rules() {
	if len(b.config.Labels) == 0 {
		return
	}
	facts := model.FactsOf(b.machine)
	for i := range b.config.Labels {
		key := b.config.Labels[i].Key
		if i >= len(b.config.Rules) {
			b.problem(key, "the rule is not compiled")
			continue
		}
		value, ok, err := b.config.Rules[i].Eval(facts)
		if err != nil {
			b.problem(key, err.Error())
		} else if ok {
			b.labels[key] = value
		}
	}
}

// Keys are the labels and taints that configurations can put on a Node. A "*" in a label's key
// stands for a part that depends on the hardware; see [wellknown.Match].
type Keys struct {
	Labels      []string
	Taints      []string
	Annotations []string
}

// Allowed lists the keys that Compute and discovery/nodesync can write under
// the given configurations, sorted and once each: what an admission policy has
// to let through.
func Allowed(sections ...*config.NodeConfig) Keys {
	k := Keys{Annotations: wellknown.NodeAnnotations()}
	for _, c := range sections {
		k.Labels = append(k.Labels, c.Domains.NodeLabels()...)
		k.Taints = append(k.Taints, c.Domains.NodeTaints()...)
		for i := range c.Labels {
			k.Labels = append(k.Labels, c.Labels[i].Key)
		}
	}
	for _, list := range []*[]string{&k.Labels, &k.Taints, &k.Annotations} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return k
}

// rdma sets the labels of HCAs with role fabric.
func (b *builder) rdma() {
	if len(b.machine.HCAs) > 0 {
		b.set(wellknown.RDMANetnsMode, b.machine.RDMA.NetnsMode)
	}
	fabric := model.RDMAOf(b.machine)
	if fabric.Count == 0 {
		return
	}
	b.setInt(wellknown.RDMACount, int64(fabric.Count))
	b.set(wellknown.RDMAType, fabric.Type)
	b.set(wellknown.RDMALinkLayer, fabric.LinkLayer)
	if fabric.RateGbps > 0 {
		b.setInt(wellknown.RDMARate, int64(fabric.RateGbps))
	}
}
