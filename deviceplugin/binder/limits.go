package binder

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/sharing"
)

// Limits makes the limits of shares hold.
type Limits interface {
	// Limit is what a container needs for its limits, before each of its
	// starts; nil is nothing. The error keeps it from starting, and the kubelet
	// tries again.
	Limit(ctx context.Context, t *Tenant) (*cdi.ContainerEdits, error)
}

// Tenant is a container with shares.
type Tenant struct {
	Pod       Pod
	Container string
	// Device is unique to one allocation of the kubelet's, and a file name.
	Device string
	Policy sharing.Policy
	// GPUs are all that the container sees, in PCI order; Share is nil for
	// whole ones.
	GPUs []GPU
	// Spec is nil if nobody knows the pod now.
	Spec *corev1.Pod
}

// Shares is what a CDI spec says of a container's shares.
type Shares struct {
	Shares []allocation.Share `json:"shares"`
	Policy string             `json:"policy"`
	By     string             `json:"by"`
	Turn   turn               `json:"turn,omitzero"`
}

// limit completes a plan by what its cards and their limits need.
func (b *Binder) limit(ctx context.Context, p *plan, pod *corev1.Pod) error {
	for i := range p.grants {
		g := &p.grants[i]
		if g.record.Kind != kindSGPU {
			continue
		}
		if b.options.CardEdits != nil {
			for _, s := range g.record.Shares {
				edits, err := b.options.CardEdits(s.UUID)
				if err != nil {
					return fmt.Errorf("card of container %s: %w", g.record.Owner.Container, err)
				}
				g.edits = append(g.edits, edits)
			}
		}
		text, err := json.Marshal(Shares{g.record.Shares, g.record.Policy, g.record.By, g.record.Turn})
		if err != nil {
			return err
		}
		g.edits = append(g.edits, &cdi.ContainerEdits{Env: []string{EnvShares + "=" + string(text)}})
		if b.options.Limits == nil {
			continue
		}
		edits, err := b.options.Limits.Limit(ctx, &Tenant{
			Pod: g.record.Owner.Pod, Container: g.record.Owner.Container, Device: g.record.Device,
			Policy: sharing.Policy(g.record.Policy), GPUs: slices.Clone(p.devices.GPUs), Spec: pod,
		})
		if err != nil {
			return fmt.Errorf("limits of container %s: %w", g.record.Owner.Container, err)
		}
		if edits != nil {
			g.edits = append(g.edits, edits)
		}
	}
	return nil
}

// merge adds edits to edits. Nodes that several cards bring are there once.
func merge(into *cdi.ContainerEdits, all []*cdi.ContainerEdits) {
	for _, e := range all {
		into.Env = append(into.Env, e.Env...)
		into.Mounts = append(into.Mounts, e.Mounts...)
		into.Hooks = append(into.Hooks, e.Hooks...)
		into.AdditionalGIDs = append(into.AdditionalGIDs, e.AdditionalGIDs...)
		if e.IntelRdt != nil {
			into.IntelRdt = e.IntelRdt
		}
		for _, node := range e.DeviceNodes {
			if !slices.ContainsFunc(into.DeviceNodes, func(n *cdi.DeviceNode) bool { return n.Path == node.Path }) {
				into.DeviceNodes = append(into.DeviceNodes, node)
			}
		}
	}
}
