package labels

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// DriverAbsent returns why a vendor's GPUs that the PCI bus shows have no driver, as
// after a reboot and during a driver upgrade; empty if every driver is there.
// What Compute makes of such a machine has nothing of its GPUs.
func DriverAbsent(m *machine.Machine, vendors gpu.Vendors) string {
	for _, v := range vendors {
		if len(v.OnBus(m.PCI)) == 0 {
			continue
		}
		shown := slices.ContainsFunc(m.GPUs, func(g machine.GPU) bool { return vendors.Of(m, &g) == v })
		var probe machine.Probe
		if at := slices.IndexFunc(m.Probes, func(p machine.Probe) bool { return p.Name == v.Probe }); at >= 0 {
			probe = m.Probes[at]
		}
		if !shown || probe.State == machine.ProbeAbsent {
			reason := strings.TrimPrefix(probe.Reason, gpu.ErrAbsent.Error()+": ")
			return v.Name + " GPUs are on the PCI bus without a driver: " + cmp.Or(reason, "it shows none of them")
		}
	}
	return ""
}

// Keep returns the result for a machine without its GPU driver, on a Node that
// carries labels and taints of heddle: those stay, but for what the
// configuration decides without the machine. lost reports whether the driver's
// absence alone would have changed them.
func (r *Result) Keep(c *config.NodeConfig, labels map[string]string, taints []corev1.Taint) (kept Result, lost bool) {
	b := builder{config: c, domains: c.Domains, labels: maps.Clone(r.Labels)}
	decided := []string{b.domains.Usage(), b.domains.ControlPlane()}
	all := makers(c)
	allowed := Allowed(all...).Labels
	for key, value := range labels {
		if slices.Contains(decided, key) ||
			!slices.ContainsFunc(allowed, func(pattern string) bool { return wellknown.Match(pattern, key) }) {
			continue
		}
		lost = lost || r.Labels[key] != value && slices.ContainsFunc(all, func(c *config.NodeConfig) bool {
			return strings.HasPrefix(key, c.Domains.VendorKey(""))
		})
		b.labels[key] = value
	}
	keptTaints, lostTaint := b.keepTaints(r.Taints, taints)
	return Result{Labels: b.labels, Taints: keptTaints, Problems: r.Problems}, lost || lostTaint
}

// makers returns the configurations for all makers of a node's GPUs.
func makers(c *config.NodeConfig) []*config.NodeConfig {
	return append([]*config.NodeConfig{c}, c.Others...)
}

// taints repeat labels, so that a pod tolerates what it can select.
func (b *builder) taints() (taints []corev1.Taint) {
	var keys []string
	if b.config.Taints.GPUProduct {
		keys = append(keys, b.domains.Product())
	}
	keys = append(keys, b.domains.Usage(), b.domains.ControlPlane())
	for _, other := range b.config.Others {
		if other.Taints.GPUProduct {
			keys = append(keys, other.Domains.Product())
		}
	}
	for _, key := range keys {
		value, labeled := b.labels[key]
		if !labeled {
			continue
		}
		if key == b.domains.ControlPlane() {
			value = "" // As Kubernetes' own taint of that kind.
		}
		taints = append(taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(b.config.Taints.Effect)})
	}
	return taints
}

// keepTaints returns the taints of the labels, with those of the GPUs' model that the Node
// carries, which no GPU of the machine shows now: see [Result.Keep]. lost reports whether
// one of these is not among computed, the taints of the machine as it is.
func (b *builder) keepTaints(computed, carried []corev1.Taint) (kept []corev1.Taint, lost bool) {
	kept = b.taints()
	for _, t := range carried {
		product := slices.ContainsFunc(makers(b.config), func(c *config.NodeConfig) bool {
			return t.Key == c.Domains.Product()
		})
		if !product || !b.config.Taints.GPUProduct || string(t.Effect) != string(b.config.Taints.Effect) {
			continue
		}
		same := func(o corev1.Taint) bool { return o.MatchTaint(&t) && o.Value == t.Value }
		lost = lost || !slices.ContainsFunc(computed, same)
		if at := slices.IndexFunc(kept, func(o corev1.Taint) bool { return o.MatchTaint(&t) }); at >= 0 {
			kept[at] = t
		} else {
			kept = append(kept, t)
		}
	}
	return kept, lost
}
