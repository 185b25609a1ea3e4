package binder

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Limits makes the limits of shares hold.
type Limits interface {
	// Edits are what a container needs for its limits, before each of its
	// starts. The error keeps it from starting, and the kubelet tries again.
	Edits(ctx context.Context, l *enforce.Limit) (*enforce.Edits, error)
}

// Shares is what a CDI spec says of a container's shares.
type Shares struct {
	Shares   []allocation.Share `json:"shares"`
	Policy   string             `json:"policy"`
	By       string             `json:"by"`
	Turn     quota.Phase        `json:"turn,omitzero"`
	RunAs    *int64             `json:"runAs,omitempty"`
	Enforced enforce.Enforced   `json:"enforced,omitzero"`
}

// limit completes a plan by what its cards and their limits need.
func (b *Binder) limit(ctx context.Context, p *plan) error {
	for i := range p.grants {
		g := &p.grants[i]
		if g.record.Kind != kindSGPU {
			continue
		}
		if err := b.dressShares(ctx, g); err != nil {
			return fmt.Errorf("shares of container %s: %w", g.record.Owner.Container, err)
		}
	}
	return nil
}

// dressShares adds edits to a grant of shares.
func (b *Binder) dressShares(ctx context.Context, g *grant) error {
	if b.options.CardEdits != nil {
		for _, s := range g.record.Shares {
			edits, err := b.options.CardEdits(s.UUID)
			if err != nil {
				return err
			}
			g.edits = append(g.edits, edits)
		}
	}
	if b.options.Limits != nil {
		l := b.limitOf(g.record, b.options.Machine(), b.memories())
		edits, err := b.options.Limits.Edits(ctx, &l)
		if err != nil {
			return fmt.Errorf("limits: %w", err)
		}
		g.edits = append(g.edits, &cdi.ContainerEdits{
			Env: edits.Env, Mounts: edits.Mounts, DeviceNodes: edits.DeviceNodes, Hooks: edits.Hooks,
		})
		if g.record.Enforced != edits.By {
			g.record = g.record.clone()
			g.record.Enforced = edits.By
			b.mu.Lock()
			b.records[g.record.Device] = g.record
			b.mu.Unlock()
		}
	}
	r := g.record
	text, err := json.Marshal(Shares{r.Shares, r.Policy, r.By, r.Turn, r.RunAs, r.Enforced})
	if err != nil {
		return err
	}
	g.edits = append(g.edits, &cdi.ContainerEdits{Env: []string{EnvShares + "=" + string(text)}})
	return nil
}

// memories are the memories of the shared cards in MiB, by UUID.
func (b *Binder) memories() map[string]int64 {
	memories := make(map[string]int64)
	if b.options.Cards != nil {
		for _, c := range b.options.Cards() {
			memories[c.UUID] = c.MemoryMiB
		}
	}
	return memories
}

// limitOf is the limit of a record with shares.
func (b *Binder) limitOf(r *record, m *machine.Machine, memories map[string]int64) enforce.Limit {
	l := enforce.Limit{
		Pod: r.Owner.UID, Container: r.Owner.Container, Policy: quota.Policy(r.Policy), UID: r.RunAs, By: r.Enforced,
	}
	addresses := make(map[string]string, len(r.Shares))
	for _, s := range r.Shares {
		card := enforce.GPU{Share: s, Index: -1, TotalMiB: memories[s.UUID]}
		for i := range m.GPUs {
			if m.GPUs[i].UUID == s.UUID {
				card.Index, addresses[s.UUID] = m.GPUs[i].Index, m.GPUs[i].PCI
			}
		}
		l.GPUs = append(l.GPUs, card)
	}
	slices.SortStableFunc(l.GPUs, func(x, y enforce.GPU) int {
		return cmp.Or(machine.ComparePCI(addresses[x.Share.UUID], addresses[y.Share.UUID]),
			cmp.Compare(x.Share.UUID, y.Share.UUID))
	})
	return l
}

// Limited are the limits of all containers that have shares and may be running.
func (b *Binder) Limited() []enforce.Limit {
	m, memories := b.options.Machine(), b.memories()
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []enforce.Limit
	for _, r := range b.records {
		if r.Owner != nil && len(r.Shares) > 0 {
			all = append(all, b.limitOf(r, m, memories))
		}
	}
	return all
}

// runAs is the user of a container as far as its pod says; nil if its image
// does.
func runAs(pod *corev1.Pod, c *corev1.Container) *int64 {
	if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
		return new(*c.SecurityContext.RunAsUser)
	}
	if pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.RunAsUser != nil {
		return new(*pod.Spec.SecurityContext.RunAsUser)
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
		for _, node := range e.DeviceNodes {
			if !slices.ContainsFunc(into.DeviceNodes, func(n *cdi.DeviceNode) bool { return n.Path == node.Path }) {
				into.DeviceNodes = append(into.DeviceNodes, node)
			}
		}
	}
}
