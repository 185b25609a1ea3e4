package export

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Channels returns the IMEX channels of NVLink cliques for ResourceClaims: a ResourceSlice for each, for the nodes
// that have the clique in a label. A clique that cannot be the value of a label, or the name of a pool, has none.
func Channels(cliques []string, label string) ([]Object, error) {
	var out []Object
	for _, clique := range cliques {
		if wellknown.CheckValue(clique) != nil || wellknown.CheckDomain(clique) != nil {
			continue
		}
		spec := resourceapi.ResourceSliceSpec{
			Driver: claims.Driver,
			Pool:   resourceapi.ResourcePool{Name: claims.ChannelPool(clique), Generation: 1, ResourceSliceCount: 1},
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{clique},
				}},
			}}},
		}
		for n := range claims.Channels {
			spec.Devices = append(spec.Devices, resourceapi.Device{
				Name: claims.ChannelDevice(n + 1),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					claims.AttributeType:   {StringValue: new(string(claims.IMEX))},
					claims.AttributeClique: {StringValue: &clique},
				},
			})
		}
		o, err := object(resourceapi.SchemeGroupVersion.String(), "ResourceSlice", "heddle-imex-"+clique, &spec)
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}
