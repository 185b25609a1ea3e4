package allocate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// claimVersion is the version of [Claim] on disk.
const claimVersion = 1

// Claim is a prepared ResourceClaim, as the checkpoint on disk stores it. Claims are read across upgrades. They
// are immutable; a change replaces them.
type Claim struct {
	Version   int    `json:"version"`
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Pods are the pods that had reserved the claim when it was prepared, by name and UID.
	Pods []kubelet.Pod `json:"pods,omitempty"`
	// Devices are in the order of the claim's allocation.
	Devices []ClaimDevice `json:"devices"`
}

// ClaimDevice is an allocated device of a claim.
type ClaimDevice struct {
	// Request is the request of the claim, or request/subrequest; Pool, Device and ShareID are as in the
	// claim's allocation.
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	ShareID string `json:"shareID,omitempty"`
	// CDI is the device of its CDI name.
	CDI string `json:"cdi"`
	// GPU is the UUID of a GPU or MIG device, HCA the identity of an HCA; empty without one.
	GPU string `json:"gpu,omitempty"`
	HCA string `json:"hca,omitempty"`
	// Channel is the number of an IMEX channel; 0 for another device.
	Channel int `json:"channel,omitempty"`
	// Share is the claim's part of the GPU, and Policy its QoS policy; nil and empty for an exclusive GPU.
	Share  *allocation.Share `json:"share,omitempty"`
	Policy string            `json:"policy,omitempty"`
	// Monitor is set for a device with adminAccess: others hold it.
	Monitor bool `json:"monitor,omitempty"`
	// Enforced names what the limits of the share were first enforced by.
	Enforced enforce.Enforced `json:"enforced,omitzero"`
}

// NewClaim returns a claim without devices.
func NewClaim(uid, namespace, name string) *Claim {
	return &Claim{Version: claimVersion, UID: uid, Namespace: namespace, Name: name}
}

// GPUs lists the GPUs and MIG devices that the claim's pods use and do not only watch.
func (c *Claim) GPUs() (uuids []string) {
	for i := range c.Devices {
		if d := &c.Devices[i]; d.GPU != "" && !d.Monitor {
			uuids = append(uuids, d.GPU)
		}
	}
	return uuids
}

// CDIName returns the name of the device's own CDI spec.
func (d *ClaimDevice) CDIName() cdi.Name { return cdi.Name{Kind: cdi.Claim, Device: d.CDI} }

// String returns "claim default/train-gpus".
func (c *Claim) String() string { return "claim " + c.Namespace + "/" + c.Name }

// SameDevices reports whether two claims have the same devices, whatever their CDI names are.
func (c *Claim) SameDevices(other *Claim) bool {
	return slices.EqualFunc(c.Devices, other.Devices, func(a, b ClaimDevice) bool {
		shares := (a.Share == nil) == (b.Share == nil) && (a.Share == nil || *a.Share == *b.Share)
		a.CDI, a.Share, a.Enforced = b.CDI, b.Share, b.Enforced
		return shares && a == b
	})
}

// ParseClaim reads the claim of a UID.
func ParseClaim(content []byte, uid string) (*Claim, error) {
	c := &Claim{}
	if err := json.Unmarshal(content, c); err != nil {
		return nil, err
	}
	switch {
	case c.Version != claimVersion:
		return nil, fmt.Errorf("unsupported version %d", c.Version)
	case c.UID != uid || c.Namespace == "" || c.Name == "":
		return nil, fmt.Errorf("it is of claim %.100q", c.UID)
	}
	for i := range c.Devices {
		d := &c.Devices[i]
		switch {
		case !cdi.IsDevice(d.CDI) || d.Request == "" || d.Device == "":
			return nil, fmt.Errorf("device %d: invalid names", i)
		case d.GPU == "" && d.HCA == "" && (d.Channel < 1 || d.Channel > claims.Channels):
			return nil, fmt.Errorf("device %d: neither a GPU nor an HCA nor a channel", i)
		case d.Share != nil:
			if err := allocation.CheckShares([]allocation.Share{*d.Share}); err != nil {
				return nil, fmt.Errorf("device %d: %w", i, err)
			}
		}
	}
	return c, nil
}

// CheckClaim returns why a claim cannot have its devices: one is gone, is not allocated by claims, or is held
// by a container or another claim. The scheduler allocates; the node is the last to see that it gives nothing
// twice.
func (n *Node) CheckClaim(c *Claim) error {
	var errs []error
	u := n.usage()
	for i := range c.Devices {
		d := &c.Devices[i]
		if d.HCA != "" && !slices.Contains(n.Inventory.Machine.HCAIDs(), d.HCA) {
			errs = append(errs, fmt.Errorf("request %s: device %s: HCA %s is not on the node any more",
				d.Request, d.Device, d.HCA))
		}
		if d.GPU == "" {
			continue
		}
		if err := u.checkClaimed(c, d); err != nil {
			errs = append(errs, fmt.Errorf("request %s: device %s: %w", d.Request, d.Device, err))
		}
	}
	return errors.Join(errs...)
}

// checkClaimed checks the GPU of a device.
func (u *usage) checkClaimed(c *Claim, d *ClaimDevice) error {
	m := u.Inventory.Machine
	parent := cmp.Or(m.ParentGPU(d.GPU), d.GPU)
	gpu, known := u.Inventory.GPUs[parent]
	switch {
	case !known || m.ParentGPU(d.GPU) == "" && gpuOf(m, d.GPU) == nil:
		return fmt.Errorf("GPU %s is not on the node any more", d.GPU)
	case gpu.Mode != config.ModeClaims:
		return fmt.Errorf("GPU %s is not allocated by claims: its mode is %s",
			parent, cmp.Or(string(gpu.Mode), "about to change"))
	case gpu.CDIError != "":
		return errors.New(gpu.CDIError)
	case d.Monitor:
		return nil
	}
	for id, holder := range u.exclusive {
		if id == d.GPU || id == parent || m.ParentGPU(id) == d.GPU {
			return fmt.Errorf("GPU %s is held by %s", id, holder)
		}
	}
	for i := range u.consumers {
		if u.consumers[i].Share.UUID == parent {
			return fmt.Errorf("GPU %s is shared by %s", parent, u.consumers[i].Container)
		}
	}
	claims := maps.Clone(u.Claims)
	if claims == nil {
		claims = map[string]*Claim{}
	}
	claims[c.UID] = c
	return u.checkSharers(claims, parent, d)
}

// checkSharers returns the claim that has a GPU, or a part of it, beside a device that cannot have it too.
func (u *usage) checkSharers(claims map[string]*Claim, parent string, own *ClaimDevice) error {
	m, vcore, memory := u.Inventory.Machine, 0, int64(0)
	for _, uid := range slices.Sorted(maps.Keys(claims)) {
		for i := range claims[uid].Devices {
			d := &claims[uid].Devices[i]
			if d.GPU == "" || d.Monitor || cmp.Or(m.ParentGPU(d.GPU), d.GPU) != parent {
				continue
			}
			mig := d.GPU != parent && own.GPU != parent
			switch {
			case d.Share != nil && own.Share != nil:
				vcore, memory = vcore+d.Share.VCore, memory+d.Share.MemoryMiB
			case mig && d.GPU != own.GPU, d == own:
			default:
				return fmt.Errorf("GPU %s is held by %s", parent, claims[uid])
			}
		}
	}
	if g := gpuOf(m, parent); vcore > quota.Whole || g != nil && g.MemoryMiB > 0 && memory > g.MemoryMiB {
		return fmt.Errorf("GPU %s: all claims together have %d %% of compute and %d MiB of memory", parent, vcore, memory)
	}
	return nil
}

// ClaimedDevices describes the devices of a claim, each alone: a container may use one of them, or several.
// It returns what the container is told of each, and the device nodes of its HCA, below /dev.
func (n *Node) ClaimedDevices(c *Claim) (described []cdi.Devices, nodes [][]string) {
	t := newTopology(n.Inventory.Config.WithRoles(n.Inventory.Machine))
	for i := range c.Devices {
		claimed := &c.Devices[i]
		d := decision{node: n, topology: t, ids: t.machine.HCAIDs(), result: &Result{Devices: cdi.Devices{
			Namespace: c.Namespace, GPUs: []cdi.DeviceGPU{}, HCAs: []cdi.DeviceHCA{},
		}}}
		if claimed.GPU != "" {
			g := d.gpu(claimed.GPU)
			g.Share, g.Policy = claimed.Share, claimed.Policy
			d.result.Devices.GPUs = append(d.result.Devices.GPUs, g)
		}
		var own []string
		if at := slices.Index(d.ids, claimed.HCA); claimed.HCA != "" && at >= 0 {
			d.hcas = t.choose(&hcaRequest{gpus: d.gpus, kept: []int{at}})
			d.addHCA(claimed.Request, d.hcas[0])
			if own = nodesOf(&t.machine.HCAs[at]); t.machine.RDMA.RDMACM {
				own = append(own, connectionManager)
			}
		}
		d.describe()
		described, nodes = append(described, d.result.Devices), append(nodes, own)
	}
	return described, nodes
}

// claimOf returns a claim that has a GPU or a part of it; nil if none has.
func (n *Node) claimOf(uuid string) *Claim {
	for _, c := range n.Claims {
		for i := range c.Devices {
			d := &c.Devices[i]
			if !d.Monitor && (d.GPU == uuid || d.GPU != "" && n.Inventory.Machine.ParentGPU(d.GPU) == uuid) {
				return c
			}
		}
	}
	return nil
}

func gpuOf(m *machine.Machine, uuid string) *machine.GPU {
	at := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == uuid })
	if at < 0 {
		return nil
	}
	return &m.GPUs[at]
}

// limit returns the limit of a device with a share.
func (d *ClaimDevice) limit(c *Claim, m *machine.Machine) enforce.Limit {
	l := enforce.Limit{
		Pod: c.UID, Container: d.CDI, Policy: quota.Policy(d.Policy), By: d.Enforced,
		GPUs: []enforce.GPU{{Share: *d.Share, Index: -1}},
	}
	if g := gpuOf(m, d.Share.UUID); g != nil {
		own := &l.GPUs[0]
		own.Index, own.TotalMiB, own.PCI, own.Maker = g.Index, g.MemoryMiB, g.PCI, g.Vendor
	}
	return l
}

// Limits returns the limits of the claim's shares, by place in Devices.
func (c *Claim) Limits(m *machine.Machine) map[int]enforce.Limit {
	all := map[int]enforce.Limit{}
	for i := range c.Devices {
		if c.Devices[i].Share != nil {
			all[i] = c.Devices[i].limit(c, m)
		}
	}
	return all
}
