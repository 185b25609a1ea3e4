package cdi

import (
	"encoding/json"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// EnvShares is the variable with the container's shares as JSON, see [Sharing].
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

// Env returns the sharing as one variable.
func (s *Sharing) Env() (string, error) {
	text, err := json.Marshal(s)
	return EnvShares + "=" + string(text), err
}
