package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// EnvShares is the container's shares as JSON, see [Sharing]. It is in the CDI
// spec for the device plugin itself, which reads it back where its checkpoint
// is lost.
const EnvShares = "HEDDLE_SHARES"

// Sharing has a container's shares of GPUs, as its checkpoint entry and,
// as [EnvShares], its CDI spec have it.
type Sharing struct {
	// Shares stand behind the device IDs, in their order; Policy is the QoS policy
	// of all, By who chose the GPUs, as in package allocation.
	Shares []allocation.Share `json:"shares,omitempty"`
	Policy string             `json:"policy,omitempty"`
	By     string             `json:"by,omitempty"`
	// Phase is when the container runs, RunAs its user as far as its pod names one,
	// Priority its pod's, Enforced what its limits were first enforced by.
	Phase    quota.Phase      `json:"turn,omitzero"`
	RunAs    *int64           `json:"runAs,omitempty"`
	Priority int32            `json:"priority,omitempty"`
	Enforced enforce.Enforced `json:"enforced,omitzero"`
}

// Env is the sharing as one variable.
func (s *Sharing) Env() (string, error) {
	text, err := json.Marshal(s)
	return EnvShares + "=" + string(text), err
}

// parseSharing reads the sharing of a device back from its spec.
func parseSharing(content []byte, device string) (*Sharing, error) {
	var spec specs.Spec
	if err := json.Unmarshal(content, &spec); err != nil {
		return nil, err
	}
	at := slices.IndexFunc(spec.Devices, func(d specs.Device) bool { return d.Name == device })
	if at < 0 {
		return nil, errors.New("the spec is of another device")
	}
	for _, env := range spec.Devices[at].ContainerEdits.Env {
		text, ok := strings.CutPrefix(env, EnvShares+"=")
		if !ok {
			continue
		}
		var s Sharing
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return nil, fmt.Errorf("%s: %w", EnvShares, err)
		}
		if err := allocation.CheckShares(s.Shares); err != nil {
			return nil, fmt.Errorf("%s: %w", EnvShares, err)
		}
		return &s, nil
	}
	return nil, fmt.Errorf("it has no %s", EnvShares)
}
