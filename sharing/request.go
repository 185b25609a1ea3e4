package sharing

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
)

// ErrNone is the error of [ParseRequest] for a container that asks for no
// share.
var ErrNone = errors.New("asks for no share of a GPU")

// ParseRequest reads what a container asks for, from its limits and its pod's
// annotations. The error is [ErrNone], or names every fault with the resource
// or annotation that has it.
func ParseRequest(limits corev1.ResourceList, annotations map[string]string, c *config.NodeConfig) (Request, error) {
	use, avoid, err := UUIDs(annotations, c.Domains)
	if _, ok := limits[corev1.ResourceName(c.Resources.SGPU)]; !ok {
		return Request{}, ErrNone
	}
	return Request{Cards: 1, VCore: Whole, Policy: FixedShare, Use: use, Avoid: avoid}, err
}
