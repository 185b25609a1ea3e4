// Package kubelet reads which container holds which devices, as the kubelet has
// it: PodResources, and the device manager's checkpoint. [Reader.Snapshot] joins
// the two into one immutable [Snapshot], and all questions are pure methods of
// that.
//
// The package keeps nothing but when the kubelet started last, and knows no
// resource: which device IDs are GPUs is its callers' business.
package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

// Reader reads the kubelet's two accounts of who holds what. It is safe for use
// by several goroutines.
type Reader struct {
	lister *lister
	// checkpoint is the file of the device manager.
	checkpoint string
	// sockets are two files that a kubelet makes again: one when it starts, before
	// it answers, and one when it knows its pods, before it registers plugins.
	sockets [2]string
	now     func() time.Time

	mu sync.Mutex // guards what follows
	// started is when a kubelet started, or registered the plugin, last.
	started time.Time
	// known is when the sockets of the kubelet were made that registered the plugin last. The clock
	// may have been set since, or between the two: they are compared with the times of files, not with the current time.
	known [2]time.Time
	// saved is the checkpoint as it was last read.
	saved saved
}

// saved is a file of the checkpoint, and what is in it.
type saved struct {
	file    os.FileInfo
	entries []entry
}

// NewReader reads the kubelet with the directory dir (/var/lib/kubelet), through
// a client of its PodResources socket. now is the clock.
func NewReader(client podresources.PodResourcesListerClient, dir string, now func() time.Time) *Reader {
	plugins := filepath.Join(dir, "device-plugins")
	return &Reader{
		lister: newLister(client), now: now,
		checkpoint: filepath.Join(plugins, "kubelet_internal_checkpoint"),
		// The first is PodResources', the second the device manager's, which needs
		// the container runtime.
		sockets: [2]string{PodResourcesSocket(dir), filepath.Join(plugins, "kubelet.sock")},
	}
}

// PodResourcesSocket returns the socket for [Dial] below the kubelet's directory.
func PodResourcesSocket(dir string) string {
	return filepath.Join(dir, "pod-resources", "kubelet.sock")
}

// Snapshot asks the kubelet. The allocations of the resources in quantities are
// kept apart; see [Snapshot]. It fails if PodResources cannot be read; what is
// wrong with the checkpoint is in the snapshot.
func (r *Reader) Snapshot(ctx context.Context, quantities ...string) (*Snapshot, error) {
	pods, err := r.lister.list(ctx)
	// After the list: it may have waited for a kubelet that starts.
	started := r.noteStart()
	if err != nil {
		return nil, err
	}
	// The checkpoint is read last: it has what the answer of PodResources has.
	entries, err := r.entries()
	s := newSnapshot(pods, entries, quantities)
	s.CheckpointErr, s.starting = err, r.now().Sub(started) < StartGrace
	return s, nil
}

// entries returns the checkpoint's, which must not be modified. The kubelet replaces the file, and seldom.
func (r *Reader) entries() ([]entry, error) {
	file, err := os.Stat(r.checkpoint) // First: a file that comes after it is read again.
	if err != nil {
		return readCheckpoint(r.checkpoint)
	}
	r.mu.Lock()
	last := r.saved
	r.mu.Unlock()
	if last.file != nil && os.SameFile(file, last.file) && file.Size() == last.file.Size() &&
		file.ModTime().Equal(last.file.ModTime()) {
		return last.entries, nil
	}
	entries, err := readCheckpoint(r.checkpoint)
	if err == nil {
		r.mu.Lock()
		r.saved = saved{file, entries}
		r.mu.Unlock()
	}
	return entries, err
}

// Registered notes that a kubelet has just registered the plugin.
func (r *Reader) Registered() {
	made := r.made()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started, r.known = r.now(), made
}

// made is when the sockets were made; zero for one that is not there.
func (r *Reader) made() (made [2]time.Time) {
	for i, path := range r.sockets {
		if info, err := os.Stat(path); err == nil {
			made[i] = info.ModTime()
		}
	}
	return made
}

// startsWithin is how much earlier a kubelet can make the second of its sockets
// than the first. It may take half a minute longer where many containers run.
const startsWithin = 2 * time.Second

// noteStart notices that a kubelet starts or has started, before it registers
// plugins: it answers already and does not know its pods yet. It returns when
// that was.
func (r *Reader) noteStart() time.Time {
	made := r.made()
	r.mu.Lock()
	defer r.mu.Unlock()
	var again [2]bool
	for i := range made {
		again[i] = !made[i].IsZero() && !made[i].Equal(r.known[i])
	}
	latest := made[0]
	switch {
	case !again[0] && !again[1]:
		return r.started
	case !again[1], made[0].Sub(made[1]) > startsWithin:
		latest = r.now()
	case made[1].After(made[0]):
		latest = made[1]
	}
	if latest.After(r.started) {
		r.started = latest
	}
	return r.started
}

// Starting reports whether a kubelet has just started: it may not know its pods
// yet.
func (r *Reader) Starting() bool { return r.now().Sub(r.noteStart()) < StartGrace }

// entry is the kubelet's checkpoint of one container and resource.
type entry struct {
	uid, container, resource string
	// ids are sorted; cdiNames are the CDI devices of Allocate's answer.
	ids, cdiNames []string
}

// checkpointFile is kubelet_internal_checkpoint as far as it matters here
// (k8s.io/kubernetes pkg/kubelet/cm/devicemanager/checkpoint). The format is
// internal to the kubelet and has been this since 1.20.
type checkpointFile struct {
	Data struct {
		PodDeviceEntries []struct {
			PodUID        string `json:"PodUID"`
			ContainerName string `json:"ContainerName"`
			ResourceName  string `json:"ResourceName"`
			// DeviceIDs by NUMA node; a device near two nodes is there twice.
			DeviceIDs map[int64][]string `json:"DeviceIDs"`
			// AllocResp is a ContainerAllocateResponse.
			AllocResp []byte `json:"AllocResp"`
		} `json:"PodDeviceEntries"`
	} `json:"Data"`
}

// parseCheckpoint reads a checkpoint. If the answer of an entry does not parse, the
// entry keeps its IDs and has no names.
func parseCheckpoint(b []byte) ([]entry, error) {
	var file checkpointFile
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, err
	}
	entries := make([]entry, 0, len(file.Data.PodDeviceEntries))
	for _, raw := range file.Data.PodDeviceEntries {
		e := entry{uid: raw.PodUID, container: raw.ContainerName, resource: raw.ResourceName}
		if e.uid == "" || e.container == "" {
			continue
		}
		for _, ids := range raw.DeviceIDs {
			e.ids = append(e.ids, ids...)
		}
		e.ids = SortIDs(e.ids)
		var answer v1beta1.ContainerAllocateResponse
		if err := proto.Unmarshal(raw.AllocResp, &answer); err == nil {
			for _, d := range answer.GetCdiDevices() {
				e.cdiNames = append(e.cdiNames, d.GetName())
			}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// maxCheckpoint is more than the kubelet writes: 110 pods with all tokens of 16 shared GPUs are some MB.
const maxCheckpoint = 16 << 20

// readCheckpoint returns the entries of a checkpoint, none without a file.
// The kubelet replaces the file by renaming, so a read never sees half of one. It
// writes it before Allocate's caller goes on, so at PreStartContainer it has the
// container.
func readCheckpoint(path string) ([]entry, error) {
	content, err := hostfile.ReadAtMost(path, maxCheckpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var entries []entry
	if err == nil {
		entries, err = parseCheckpoint(content)
	}
	if err != nil {
		return nil, fmt.Errorf("kubelet checkpoint %s: %w", path, err)
	}
	return entries, nil
}
