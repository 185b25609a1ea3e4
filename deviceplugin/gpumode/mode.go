// Package gpumode decides where a GPU is allocated, as an exclusive resource (native), in
// shares (sgpu) or by claims, and when it changes to another mode.
//
// It owns the modes of a node's GPUs, on disk and in memory, and which GPUs an operator
// cordoned. A GPU that is to change its mode first drains: it is listed as unhealthy
// until the kubelet no longer offers it and no pod holds it. Then it leaves its resource,
// which rejects calls for it. If still no pod holds it and no call is in flight, its mode
// changes. So it is never in two modes, and what a pod holds is never taken from
// it. What the kubelet offers and pods hold comes in as values. The package advertises
// nothing itself, decides nothing about health, and never ends a pod.
package gpumode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/notify"
)

// Cordoned is the reason why no new pod gets a GPU that an operator cordoned.
const Cordoned = "cordoned"

// What can be wrong.
const (
	// FaultModes is the file of modes as it was read, FaultSaving that it cannot be
	// written.
	FaultModes  = "modes"
	FaultSaving = "modes-file"
	// FaultCordon is the Node's list of cordoned GPUs.
	FaultCordon = "cordon"
)

// GPU is the mode of one GPU, as it is reported and as new pods get it.
type GPU struct {
	report.GPU
	// Offered is the mode in which it is offered: Mode, or empty while it changes.
	Offered config.Mode
	// Unavailable explains why no new pod gets the GPU, or is empty; Draining is true if a pending
	// change of mode is the only reason.
	Unavailable string
	Draining    bool
	phase       phase
}

// Tracker keeps the mode of every GPU. Its methods may be called from any goroutine.
type Tracker struct {
	dir string
	log *slog.Logger
	// changed is set when an answer may differ, pending when an observation is needed.
	changed, pending notify.Signal

	mu sync.Mutex // guards all below
	// gpus is keyed by UUID, and includes GPUs that the machine has lost.
	gpus map[string]gpuState
	// config is the configuration of the last round, nil before it, machine its machine; present are that
	// machine's GPUs in order.
	config  *config.NodeConfig
	machine *machine.Machine
	present []*machine.GPU
	// observing reports whether another observation follows the last one.
	observing bool
	// cordoned are the sorted UUIDs that no new pod gets. unsaved is whether the file lacks one,
	// or a mode that is in use.
	cordoned []string
	unsaved  bool
	faults   report.Faults
}

// New makes a Tracker from the files in the device plugin's state directory. An unreadable file is
// a problem ([Tracker.Problems]) and not an error.
func New(dir string, log *slog.Logger) *Tracker {
	t := &Tracker{
		dir: dir, log: log, changed: notify.New(), pending: notify.New(),
		gpus: map[string]gpuState{}, faults: report.Faults{Log: log},
	}
	saved, err := load(dir)
	t.faults.Note(FaultModes, err)
	for uuid, mode := range saved.Modes {
		t.gpus[uuid] = gpuState{mode: mode, wanted: mode}
	}
	t.cordoned = saved.Cordoned
	return t
}

// Round takes the machine and the configuration; neither is changed later. Then the
// resources follow what [Tracker.GPUs] returns, and Published notes that they did.
func (t *Tracker) Round(m *machine.Machine, c *config.NodeConfig) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.config, t.machine, t.present = c, m, nil
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if g.UUID == "" || t.has(g.UUID) {
			continue
		}
		t.present = append(t.present, g)
		t.gpus[g.UUID] = configure(t.gpus[g.UUID], inventory.Wanted(c, g))
	}
	if !t.observing && t.some((*gpuState).pending) {
		t.pending.Notify()
	}
}

// Published notes that the resources follow an answer of [Tracker.GPUs].
func (t *Tracker) Published(gpus []GPU) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range gpus {
		if g := t.gpus[gpus[i].UUID]; g.phase == gpus[i].phase && g.shown.IsZero() {
			g.shown = time.Now()
			t.gpus[gpus[i].UUID] = g
		}
	}
}

// Changed receives when an answer of the Tracker may differ.
func (t *Tracker) Changed() <-chan struct{} { return t.changed }

// Pending receives when [Tracker.Observe] should be called.
func (t *Tracker) Pending() <-chan struct{} { return t.pending }

// Known reports whether the modes of all GPUs are known. They are not on the first start
// of all, until it is known which pods hold what.
func (t *Tracker) Known() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.config != nil && !t.some(func(g *gpuState) bool { return g.mode == "" })
}

// has reports whether the machine has a GPU. Hold mu.
func (t *Tracker) has(uuid string) bool {
	return slices.ContainsFunc(t.present, func(p *machine.GPU) bool { return p.UUID == uuid })
}

// some reports whether a GPU of the machine is in a state. Hold mu.
func (t *Tracker) some(is func(*gpuState) bool) bool {
	return slices.ContainsFunc(t.present, func(p *machine.GPU) bool {
		g := t.gpus[p.UUID]
		return is(&g)
	})
}

// Any reports whether a GPU of the machine is in a mode now, or was when the machine
// still had it.
func (t *Tracker) Any(in config.Mode) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range t.gpus {
		if g.mode == in {
			return true
		}
	}
	return false
}

// GPUs returns the GPUs of the machine, in its order.
func (t *Tracker) GPUs() []GPU {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []GPU
	for _, p := range t.present {
		g := t.gpus[p.UUID]
		now := GPU{
			GPU: report.GPU{
				Index: p.Index, UUID: p.UUID, PCI: p.PCI, Mode: string(g.mode), Wanted: string(g.wanted), Until: g.until(),
				Cordoned: slices.Contains(t.cordoned, p.UUID),
			},
			Offered: g.mode, Unavailable: g.unavailable(), phase: g.phase,
		}
		switch {
		case g.phase == leaving:
			now.Offered = ""
		case now.Cordoned:
			now.Unavailable = Cordoned
		default:
			now.Draining = g.phase == draining && g.mode != g.wanted
		}
		all = append(all, now)
	}
	return all
}

// Cordon takes the value of the Node's annotation [wellknown.CordonedGPUs], or an empty string. It
// must not be called while the Node is unknown: then the last known GPUs stay cordoned. Call it
// before Round.
func (t *Tracker) Cordon(text string) {
	uuids, err := wellknown.ParseCordoned(text)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults.Note(FaultCordon, err)
	if err != nil && len(uuids) == 0 {
		return
	}
	if slices.Equal(uuids, t.cordoned) {
		return
	}
	t.cordoned = uuids
	t.log.Info("cordoned GPUs changed", "uuids", uuids)
	err = t.save(nil)
	t.faults.Note(FaultSaving, err)
	if t.unsaved = err != nil; t.unsaved {
		t.pending.Notify()
	}
}

// UnknownCordoned returns the cordoned UUIDs that the machine does not have, sorted: GPUs that
// were removed, or mistakes.
func (t *Tracker) UnknownCordoned() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.config == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(t.cordoned), t.has)
}

// Problems returns the current problems by component.
func (t *Tracker) Problems() []report.Problem { return t.faults.Problems() }

const (
	modesFile = "card-modes.json" // in the state directory
	version   = 1
	// maxGPUs bounds the GPUs in the file: those that a node has ever had.
	maxGPUs = 1024
)

// record is the file: the modes of GPUs, and those that are cordoned.
type record struct {
	Version  int                    `json:"version"`
	Modes    map[string]config.Mode `json:"modes"`
	Cordoned []string               `json:"cordoned,omitempty"`
}

// decode reads the file. The UUIDs and modes in it are valid.
func decode(b []byte) (*record, error) {
	r := &record{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	if r.Version != version {
		return nil, fmt.Errorf("unknown version %d", r.Version)
	}
	for _, uuid := range slices.AppendSeq(slices.Clone(r.Cordoned), maps.Keys(r.Modes)) {
		if !wellknown.IsGPUUUID(uuid) {
			return nil, fmt.Errorf("invalid GPU %.100q", uuid)
		}
	}
	for uuid, mode := range r.Modes {
		if mode != config.ModeNative && mode != config.ModeSGPU && mode != config.ModeClaims {
			return nil, fmt.Errorf("invalid mode %.32q of GPU %s", mode, uuid)
		}
	}
	return r, nil
}

// load reads the file; an empty record without a file, or with an error.
func load(dir string) (*record, error) {
	path := filepath.Join(dir, modesFile)
	b, err := hostfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &record{}, nil
	}
	if err == nil {
		var r *record
		if r, err = decode(b); err == nil {
			return r, nil
		}
	}
	return &record{}, fmt.Errorf(
		"%s: %w; modes are taken from the holders of the GPUs, and cordons from the Node", path, err)
}

// save writes the file, with the next modes of GPUs that move. Hold mu. Should a loss of power bring the old
// file back, its modes are compared with the holders.
func (t *Tracker) save(moving map[string]config.Mode) error {
	r := record{Version: version, Modes: map[string]config.Mode{}, Cordoned: t.cordoned}
	// A GPU that was reset comes back: the file keeps lost ones as long as it has room.
	var uuids []string
	for _, p := range t.present {
		uuids = append(uuids, p.UUID)
	}
	for _, uuid := range append(uuids, slices.Sorted(maps.Keys(t.gpus))...) {
		mode := t.gpus[uuid].mode
		if next, moves := moving[uuid]; moves {
			mode = next
		}
		if mode != "" && len(r.Modes) < maxGPUs && wellknown.IsGPUUUID(uuid) {
			r.Modes[uuid] = mode
		}
	}
	if err := hostfile.WriteJSON(filepath.Join(t.dir, modesFile), r, 0o600, hostfile.Durable); err != nil {
		return fmt.Errorf("write %s: %w", modesFile, err)
	}
	return nil
}
