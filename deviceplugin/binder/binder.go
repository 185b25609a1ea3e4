// Package binder finds out which container a start is of, gives that container
// its GPUs and HCAs together, and tells the container runtime by a CDI spec.
//
// The kubelet says in Allocate neither for whom nor what else the container
// asks for, and asks in random order. So Allocate gives out a CDI name that
// nobody had before, with nothing behind it ([Binder.Name]), and the decision
// falls in PreStartContainer ([Binder.Bind]), when PodResources and the
// kubelet's checkpoint say whose the device IDs are. A name is never used
// again: a runtime that has not seen its spec yet finds nothing and is asked
// again, and never finds another container's devices.
//
// Who has what is derived: from the kubelet's two accounts and the records of
// the names given out; where a record is lost from the CDI spec, and where that
// is lost too, of shares, from the pod's annotation. The package opens no device, decides nothing about
// health, and never writes to the API server.
package binder

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// PodSpecs knows what pods' owners wrote.
type PodSpecs interface {
	// Pod returns the pod, by UID if there is one, else by namespace and name.
	// A static pod's UID is the one of the kubelet, which its mirror in the API
	// has as annotation kubernetes.io/config.mirror. It may ask the API server
	// and wait until ctx ends. The pod is not changed.
	Pod(ctx context.Context, pod Pod) (*corev1.Pod, error)
}

// Events tells people about a pod. Warn returns at once: no start of a
// container waits for the API server.
type Events interface {
	Warn(pod Pod, reason, message string)
}

// Reasons of Events.
const (
	// FewerHCAs: the container got less HCAs than it asked for.
	FewerHCAs = "FewerHCAs"
	// FarHCAs: a GPU of the container has only NODE or SYS to its HCAs, though
	// the machine has a nearer one of that resource.
	FarHCAs = "FarHCAs"
	// DevicesLost: a container that had devices has none in the kubelet's
	// account any more, and cannot start again.
	DevicesLost = "DevicesLost"
	// SGPURefused: the pod's containers get no share of a card, and do not start.
	SGPURefused = "SGPURefused"
)

// Options are what a Binder works with.
type Options struct {
	// Machine and Config are the latest; neither is nil or ever changed.
	Machine func() *machine.Machine
	Config  func() *config.NodeConfig
	// Against says why an HCA is unhealthy, empty if it is well. Nil takes the
	// word of the scan.
	Against func(*machine.HCA) string
	// PodResources is the kubelet's, see [Dial]; Checkpoint is the path of its
	// kubelet_internal_checkpoint.
	PodResources PodResources
	Checkpoint   string
	// Sockets are two files that a kubelet makes anew: when it starts, before it
	// answers, and when it knows its pods, before it registers us. Without them
	// only [Binder.Wake] tells of a start.
	Sockets [2]string
	// PodSpecs and Events may be nil.
	PodSpecs PodSpecs
	Events   Events
	// Known is a pod of this node, without asking anybody; nil if it is not
	// among those that are known, and complete is false while not all are. Nil
	// knows nobody, ever.
	Known func(Pod) (pod *corev1.Pod, complete bool)
	// NodeName is what schedulers call this node.
	NodeName string
	// Cards are the cards that are handed out in shares, with nothing taken;
	// Against has what is wrong with one. Nil is none.
	Cards func() []quota.GPU
	// CardEdits are the device nodes of a card.
	CardEdits func(uuid string) (*cdi.ContainerEdits, error)
	// Limits makes the limits of shares hold, Scheduler knows another
	// scheduler's choice of cards. Either may be nil.
	Limits    Limits
	Scheduler Scheduler
	// CDIDir is a directory whose specs the runtime watches: /var/run/cdi.
	CDIDir string
	// StateDir is ours, on a disk, and has the same path on the host:
	// containers get files of it mounted.
	StateDir string
	// DevRoot is where the runtime finds device nodes; default /dev.
	DevRoot string
	// GPUEnv is added to every container with GPUs, whatever its pod sets,
	// such as NVIDIA_VISIBLE_DEVICES=void beside a static CDI spec.
	GPUEnv []string
	// Log defaults to none, Now to the clock.
	Log *slog.Logger
	Now func() time.Time
}

// Binder binds devices to containers. Its methods may be called at once.
type Binder struct {
	options    Options
	lister     lister
	checkpoint checkpoint
	settler    settler
	changed    chan struct{}
	wake       chan struct{}
	// starting serializes what is done for one container: its resources'
	// PreStartContainer calls, and retries of those that timed out.
	starting stripes
	// files is held for reading to write files and for writing to collect them.
	files sync.RWMutex

	mu sync.Mutex // guards all below
	// records are by device. A record is never changed, but replaced.
	records map[string]*record
	// gone is since when a record has had no pod.
	gone map[string]time.Time
	// faults are what is wrong now, by what it is wrong with.
	faults map[string]string
	// lost are the containers that have devices and of which the kubelet knows
	// none: it lost its checkpoint. Each was told.
	lost map[owner]bool
	// refused are the pods that wait for a card.
	refused map[Pod]*refusing
	// testimonies are of containers whose records and specs are lost; blind is
	// [Binder.Blind].
	testimonies []testimony
	blind       bool
	// drifts are the differences that were found and not told yet, drifting
	// those that are still there.
	drifts   []Drift
	drifting map[Drift]bool
	// woken is when a kubelet started or registered us last.
	woken time.Time
	// unsure is while nobody knows whether a new kubelet has lost devices.
	unsure bool
	// decisions counts them.
	decisions uint64
	// accounted are the records that the kubelet has had in its account; nil
	// before [Binder.Held] has looked.
	accounted map[string]bool
}

// New makes a Binder from what is on disk. What cannot be read is a problem
// ([Binder.Problems]) and not an error: the other containers need us.
func New(o Options) *Binder {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.DevRoot == "" {
		o.DevRoot = "/dev"
	}
	b := &Binder{
		options: o, lister: newLister(o.PodResources), checkpoint: checkpoint{path: o.Checkpoint},
		changed: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		gone: make(map[string]time.Time), faults: make(map[string]string),
		lost: make(map[owner]bool), refused: make(map[Pod]*refusing),
		drifting: make(map[Drift]bool),
	}
	b.settler.dir, b.settler.done = b.recordDir(), func(err error) { b.note(faultDisk, err) }
	records, err := loadRecords(b.recordDir())
	b.records = records
	b.note(faultRecords, err)
	return b
}

// What can be wrong.
const (
	faultRecords      = "records"
	faultCheckpoint   = "checkpoint"
	faultPodResources = "podresources"
	faultCDI          = "cdi"
	faultState        = "state"
	faultDisk         = "disk"
	faultUnrecorded   = "unrecorded"
)

// Problem is something that is wrong now.
type Problem struct {
	// Name is records, checkpoint, podresources, cdi, state, disk or unrecorded.
	Name   string
	Reason string
}

// Problems are what is wrong now, by name; several may be unrecorded, one for
// each container.
func (b *Binder) Problems() []Problem {
	b.mu.Lock()
	defer b.mu.Unlock()
	problems := make([]Problem, 0, len(b.faults))
	for _, name := range slices.Sorted(maps.Keys(b.faults)) {
		problems = append(problems, Problem{name, b.faults[name]})
	}
	return append(problems, b.doubtsLocked()...)
}

// note keeps what is wrong with something, or that nothing is any more.
func (b *Binder) note(name string, err error) {
	b.mu.Lock()
	old := b.faults[name]
	if err == nil {
		delete(b.faults, name)
	} else {
		b.faults[name] = err.Error()
	}
	b.mu.Unlock()
	switch {
	case err != nil && err.Error() != old:
		b.options.Log.Warn("trouble", "with", name, "err", err)
	case err == nil && old != "":
		b.options.Log.Info("well again", "with", name)
	}
}

// Changed tells that [Binder.Bindings] differ. It has room for one.
func (b *Binder) Changed() <-chan struct{} { return b.changed }

func (b *Binder) signal() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// kindOf is the kind of a resource, with the configuration of an RDMA one.
func kindOf(c *config.NodeConfig, resource string) (kind string, r *config.RDMAResource, err error) {
	for i := range c.RDMA.Resources {
		if c.RDMA.Resources[i].Name == resource {
			return kindRDMA, &c.RDMA.Resources[i], nil
		}
	}
	if resource == c.Resources.SGPU {
		return kindSGPU, nil, nil
	}
	if resource == c.Resources.GPU || strings.HasPrefix(resource, c.Domains.Vendor+"/mig-") {
		return kindGPU, nil, nil
	}
	return "", nil, fmt.Errorf("resource %s is none of this node's", resource)
}

// Name makes up the CDI device for one Allocate call, such as
// heddle.dev/gpu=0123456789ab-0123456789abcdef, and records it on disk. There
// is nothing behind the name before Bind.
func (b *Binder) Name(resource string, ids []string) (string, error) {
	ids = sorted(ids)
	if len(ids) == 0 {
		return "", fmt.Errorf("name for %s: no device IDs", resource)
	}
	kind, _, err := kindOf(b.options.Config(), resource)
	if err != nil {
		return "", err
	}
	r := &record{
		Kind: kind, Device: digest(resource, ids) + "-" + nonce(),
		Resource: resource, IDs: ids, Created: b.options.Now().UTC(),
	}
	if err := b.keep(r); err != nil {
		return "", err
	}
	return r.name(), nil
}
