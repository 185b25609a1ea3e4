package labels

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
)

// taints repeat labels, so that a pod tolerates what it can select.
func (b *builder) taints() (taints []corev1.Taint) {
	type taint struct {
		on  bool
		key string
	}
	all := []taint{
		{b.config.Taints.GPUProduct, b.domains.Product()},
		{b.config.Taints.NodeUsage, b.domains.Usage()},
		{b.config.Taints.ControlPlane, b.domains.ControlPlane()},
	}
	for _, other := range b.config.Others {
		all = append(all, taint{other.Taints.GPUProduct, other.Domains.Product()})
	}
	for _, t := range all {
		value, labeled := b.labels[t.key]
		if !t.on || !labeled {
			continue
		}
		if t.key == b.domains.ControlPlane() {
			value = "" // As Kubernetes' own taint of that kind.
		}
		taints = append(taints, corev1.Taint{Key: t.key, Value: value, Effect: corev1.TaintEffect(b.config.Taints.Effect)})
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
