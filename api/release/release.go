// Package release is a release of a node's GPUs: for a time, heddle keeps no
// session with their driver and gives them to no new pod, so that they can be
// reset and the driver replaced.
//
// It owns the values of two annotations of the Node: what an operator asks for
// ([Request], key [wellknown.GPURelease]), and what the device plugin answers
// ([Status], key [wellknown.GPUReleaseStatus]). It reads and writes no Node.
package release

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Reason is why no new pod gets a GPU that is released.
const Reason = "released for maintenance"

// maxRequest bounds a request, in bytes: a node has 16 GPUs or less.
const maxRequest = 4096

// Request is an operator's request. The zero value requests nothing.
type Request struct {
	// Until is the end of the release.
	Until time.Time `json:"until"`
	// GPUs are the UUIDs of the GPUs that no new pod gets; none are all. The
	// session with the driver is one for all GPUs, and ends in either case.
	GPUs []string `json:"gpus,omitempty"`
}

// Active reports whether the release lasts.
func (r Request) Active(now time.Time) bool { return now.Before(r.Until) }

// Covers reports whether no new pod gets this GPU.
func (r Request) Covers(uuid string) bool { return len(r.GPUs) == 0 || slices.Contains(r.GPUs, uuid) }

// Equal reports whether two requests are one.
func (r Request) Equal(other Request) bool {
	return r.Until.Equal(other.Until) && slices.Equal(r.GPUs, other.GPUs)
}

// Parse reads a value of [wellknown.GPURelease]; an empty one is the zero
// Request, and so is one with an error.
func Parse(text string) (Request, error) {
	if text == "" {
		return Request{}, nil
	}
	var r Request
	if err := parse(text, &r); err != nil {
		return Request{}, fmt.Errorf("annotation %s: %w", wellknown.GPURelease, err)
	}
	return r, nil
}

func parse(text string, r *Request) error {
	if len(text) > maxRequest {
		return fmt.Errorf("more than %d bytes", maxRequest)
	}
	if err := allocation.Decode(text, r); err != nil {
		return err
	}
	if r.Until.IsZero() {
		return errors.New("until is missing: a release needs an end")
	}
	for _, uuid := range r.GPUs {
		if !wellknown.IsGPUUUID(uuid) {
			return fmt.Errorf("invalid GPU UUID %.100q", uuid)
		}
	}
	return nil
}

// Status is the device plugin's answer to a request, as long as that lasts.
type Status struct {
	// Request is the one that is answered.
	Request Request `json:"request"`
	// Released is true once the device plugin has no session with the driver and
	// the kubelet offers none of the GPUs to new pods. Message names what that waits
	// for.
	Released bool   `json:"released"`
	Message  string `json:"message,omitempty"`
	// Pods have GPUs of the request. Processes have a device node of any GPU open.
	// More is how many there are besides that there was no room for.
	Pods      []Pod     `json:"pods,omitempty"`
	Processes []Process `json:"processes,omitempty"`
	More      int       `json:"more,omitempty"`
	// Unseen is why there may be processes that Processes lacks.
	Unseen string `json:"unseen,omitempty"`
}

// Pod is a container with GPUs, by UUID; MIG devices have UUIDs of their own.
type Pod struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Container string   `json:"container"`
	GPUs      []string `json:"gpus"`
}

// Process has device nodes of GPUs open. Pod is its namespace and name; empty for
// a process of the host.
type Process struct {
	PID     int      `json:"pid"`
	Command string   `json:"command"`
	Devices []string `json:"devices"`
	Pod     string   `json:"pod,omitempty"`
}

// Held reports whether something still holds a GPU, as far as it is known.
func (s *Status) Held() bool { return len(s.Pods)+len(s.Processes)+s.More > 0 }
