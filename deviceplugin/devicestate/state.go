// Package devicestate is which container has which devices, and prepares a
// container's devices when it starts.
//
// In Allocate the kubelet names neither the container nor what else it requests,
// and it calls for resources in random order. So [State.Allocate] only makes a
// unique CDI name with nothing behind it, and the decision falls in
// PreStartContainer ([State.Prepare]), when PodResources or the kubelet's checkpoint shows which
// container holds the device IDs. What a pod that is gone leaves behind is removed
// by [State.Unprepare].
//
// A State takes a kubelet.Snapshot, has deviceplugin/allocate decide under its lock,
// writes the checkpoint entry and then the deviceplugin/cdi spec. It opens no device, decides nothing
// about health, and writes nothing to the API server but Events of pods.
package devicestate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/keymutex"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/discovery/bounded"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// Limiter enforces the limits of shares.
type Limiter interface {
	// Edits returns the edits for a container's limits, before each of its
	// starts, and the enforcers. The error keeps it from starting, and the kubelet tries again.
	Edits(ctx context.Context, l *enforce.Limit) (*specs.ContainerEdits, enforce.Enforced, error)
}

// Options configure a State.
type Options struct {
	// NodeName is the node's name for schedulers.
	NodeName string
	Kubelet  *kubelet.Reader
	// API and Limiter may be nil.
	API     API
	Limiter Limiter
	// CDIDir is a directory with specs that the runtime watches: /var/run/cdi.
	CDIDir string
	// StateDir is heddle's, on a disk, and has the same path on the host:
	// containers get files of it mounted.
	StateDir string
	// DevRoot is the directory of the runtime's device nodes; default /dev.
	DevRoot string
	// GPUs know what is on a GPU, and Processes where processes run. A replayed machine leaves GPUs empty.
	GPUs      gpu.Sources
	Processes cgroup.Proc
	// Hook is heddle-cdi-hook's path on the node, which adds hints to a container's
	// /etc/nccl.conf; empty: hints are in the environment alone.
	Hook string
	// GPUEnv is added to every container with GPUs, whatever its pod sets,
	// such as NVIDIA_VISIBLE_DEVICES=void beside a static CDI spec.
	GPUEnv []string
	// Log defaults to none, Now to the clock.
	Log *slog.Logger
	Now func() time.Time
}

// State records which container has which devices. Its methods are safe for concurrent use.
type State struct {
	options      Options
	inventory    atomic.Pointer[inventory.Inventory]
	kubelet      *kubelet.Reader
	checkpoint   *records
	claimRecords *claimRecords
	cdi          cdi.Files
	api          API
	problems     report.Faults
	changed      notify.Signal
	registered   notify.Signal
	// starting serializes the calls for one container, by its name: its resources' PreStartContainer
	// calls, and retries after timeouts.
	starting keymutex.KeyMutex
	// files is held for reading to write files and for writing to remove them: after a change of
	// the clock, a file being written looks stale.
	files sync.RWMutex

	asking      sync.Mutex // guards occupancies
	occupancies bounded.Group[string, gpu.Occupancy]

	mu sync.Mutex // guards all below
	// entries is keyed by device. An entry is replaced, never changed.
	entries map[string]*allocate.Entry
	// claims are the prepared ResourceClaims, by UID, and those that are being prepared.
	claims map[string]*allocate.Claim
	// gone is since when an entry has had no pod.
	gone map[string]time.Time
	// uncertain holds the containers with devices that the kubelet or the checkpoint has lost.
	uncertain map[kubelet.Container]uncertain
	// rejected are the pods that wait for shares, HCAs or IMEX channels.
	rejected map[kubelet.Pod]report.Rejection
	// dirty are the GPUs with something on them that keeps them from their next pods.
	dirty map[string]dirt
	// drifts are the differences that the last Reconcile found.
	drifts map[Drift]bool
	// decisions counts them.
	decisions uint64
	// probed is the time when Unwritable last wrote to the state directory.
	probed time.Time
}

// New makes a State from the files on disk. An unreadable file is a problem ([State.Problems]) and
// not an error: the other containers need the plugin.
func New(o Options, inv *inventory.Inventory) *State {
	o.Log, o.DevRoot = cmp.Or(o.Log, slog.New(slog.DiscardHandler)), cmp.Or(o.DevRoot, "/dev")
	o.Processes.Root = cmp.Or(o.Processes.Root, "/proc")
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.API == nil {
		o.API = (*apiserver.Client)(nil)
	}
	s := &State{
		options: o, kubelet: o.Kubelet,
		checkpoint:   &records{filepath.Join(o.StateDir, "records")},
		claimRecords: &claimRecords{filepath.Join(o.StateDir, claimsDir)},
		cdi:          cdi.Files{SpecDir: o.CDIDir, DeviceDir: filepath.Join(o.StateDir, "devices"), DevRoot: o.DevRoot},
		changed:      notify.New(), registered: notify.New(), problems: report.Faults{Log: o.Log}, api: o.API,
		gone: make(map[string]time.Time), uncertain: make(map[kubelet.Container]uncertain),
		drifts: make(map[Drift]bool), dirty: make(map[string]dirt),
		rejected: make(map[kubelet.Pod]report.Rejection), starting: keymutex.NewHashed(0),
	}
	s.inventory.Store(inv)
	entries, err := s.checkpoint.load()
	s.entries = entries
	s.problems.Note(problemEntries, err)
	s.claims, err = s.claimRecords.load()
	s.problems.Note(problemClaims, err)
	return s
}

// Update takes the node as it is now.
func (s *State) Update(inv *inventory.Inventory) { s.inventory.Store(inv) }

// Changed receives when [State.Allocations] may differ.
func (s *State) Changed() <-chan struct{} { return s.changed }

// Registered notes that a kubelet has just registered the plugin; Run then looks
// whether it has forgotten devices. It returns at once.
func (s *State) Registered() {
	s.kubelet.Registered()
	s.registered.Notify()
}

// Allocate makes the CDI device for one Allocate call, such as
// heddle.dev/gpu=0123456789ab-0123456789abcdef, and records it. There
// is nothing behind the name before Prepare.
func (s *State) Allocate(resource string, ids []string) (string, error) {
	ids = kubelet.SortIDs(ids)
	if len(ids) == 0 {
		return "", fmt.Errorf("allocate %s: no device IDs", resource)
	}
	inv := s.inventory.Load()
	kind, err := allocate.KindOf(inv.Config, resource)
	if err != nil {
		return "", err
	}
	name := cdi.NewName(kind, resource, ids)
	e := &allocate.Entry{
		Kind: kind, Device: name.Device, Resource: resource, IDs: ids, Created: s.options.Now().UTC(),
	}
	if kind == cdi.GPU {
		e.Modes = inv.Modes(ids)
	}
	// Before anyone can give it an owner. If it fails, the name in the kubelet's checkpoint is worth as much.
	s.files.RLock()
	err = s.checkpoint.write(e)
	s.files.RUnlock()
	if s.problems.Note(problemState, err); err != nil {
		s.changed.Notify() // See Unwritable.
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[e.Device] = e
	return name.String(), nil
}

// observation is the kubelet's snapshot and what was known when it was taken.
type observation struct {
	*kubelet.Snapshot
	// since is the number of the last decision before it.
	since uint64
}

// observe asks the kubelet, and finds what it or the checkpoint has lost.
func (s *State) observe(ctx context.Context) (*observation, error) {
	s.mu.Lock()
	since := s.decisions
	s.mu.Unlock()
	names := s.inventory.Load().Config.Resources
	snapshot, err := s.kubelet.Snapshot(ctx, names.VCore, names.VMemory)
	s.problems.Note(problemPodResources, err)
	if err != nil {
		return nil, err
	}
	s.problems.Note(problemCheckpoint, snapshot.CheckpointErr)
	o := &observation{Snapshot: snapshot, since: since}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.findUncertainLocked(o)
	return o, nil
}

// observeBoth is observe, and fails without the kubelet's checkpoint too.
func (s *State) observeBoth(ctx context.Context) (*observation, error) {
	seen, err := s.observe(ctx)
	if err == nil {
		err = seen.CheckpointErr
	}
	return seen, err
}

// nodeLocked returns the current state, for package allocate. It is for holders of mu,
// as long as they use it.
func (s *State) nodeLocked(o *observation) *allocate.Node {
	return &allocate.Node{
		Name: s.options.NodeName, Inventory: s.inventory.Load(), Snapshot: o.Snapshot, Since: o.since,
		Entries: s.entries, Claims: s.claims, Uncertain: s.uncertainLocked(o.Starting()), Unrecorded: s.unrecordedLocked(),
	}
}

// applyLocked puts the entries of one decision into force. The caller holds mu.
func (s *State) applyLocked(entries ...*allocate.Entry) {
	for _, e := range entries {
		s.decisions++
		e.Decision = s.decisions
		if e.Created.IsZero() {
			e.Created = s.options.Now().UTC()
		}
		s.entries[e.Device] = e
		delete(s.gone, e.Device)
		maps.DeleteFunc(s.uncertain, func(c kubelet.Container, u uncertain) bool {
			return u.unrecorded != nil && e.HasShares(c)
		})
	}
}

// What can be wrong.
const (
	problemEntries      = "records"
	problemClaims       = "claims"
	problemClaimSpecs   = "claims-specs"
	problemCheckpoint   = "checkpoint"
	problemPodResources = "podresources"
	problemCDI          = "cdi"
	problemState        = "state"
	problemSpace        = "space"
)

// Problems returns the current problems, by name.
func (s *State) Problems() []report.Problem { return s.problems.Problems() }

// probeEvery is the interval between probes of the state directory.
const probeEvery = time.Minute

// Unwritable returns the reason why allocations cannot be recorded, or an empty string: then no
// device may be offered, since no container could start. It writes to the directory once a minute,
// and each time while a write has failed.
func (s *State) Unwritable() string {
	now := s.options.Now()
	s.mu.Lock()
	due := s.problems.Has(problemState) || s.problems.Has(problemSpace) || now.Sub(s.probed).Abs() >= probeEvery
	if due {
		s.probed = now
	}
	s.mu.Unlock()
	if !due {
		return ""
	}
	err := s.checkpoint.probe()
	s.problems.Note(problemSpace, err)
	if err != nil {
		return err.Error()
	}
	return ""
}

// API is the API server; deviceplugin/apiserver's client.
type API interface {
	// Pod returns a pod, by UID if known, else by namespace and name. A static pod has the
	// kubelet's UID, which its mirror in the API has as annotation kubernetes.io/config.mirror. It
	// may ask the API server and wait until ctx ends. Callers must not modify the pod.
	Pod(ctx context.Context, pod kubelet.Pod) (*corev1.Pod, error)
	// Watched returns a pod of this node without a request, nil if it is not among
	// those that are watched; complete is false while not all are.
	Watched(pod kubelet.Pod) (watched *corev1.Pod, complete bool)
	// WarnPod records an Event. It returns at once: no start of a container waits
	// for the API server.
	WarnPod(pod kubelet.Pod, reason, message string)
}

// podTimeout bounds how long a start waits for its pod's spec. Without the spec the container
// starts without hints.
const podTimeout = 3 * time.Second

// readPod returns a pod; nil if it is not known in time.
func (s *State) readPod(ctx context.Context, ref kubelet.Pod) *corev1.Pod {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	pod, err := s.api.Pod(ctx, ref)
	if err == nil {
		return pod
	}
	if !errors.Is(err, apiserver.ErrOffline) {
		s.options.Log.Warn("pod is not known, its containers get no hints", "pod", ref.String(), "err", err)
	}
	return nil
}

// isGone reports whether the API server has shown that a pod has ended or is not on
// this node any more.
func (s *State) isGone(ref kubelet.Pod) bool {
	pod, complete := s.api.Watched(ref)
	if pod != nil {
		return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	}
	return complete
}
