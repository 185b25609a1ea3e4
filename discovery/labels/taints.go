package labels

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
)

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
