package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// maxCheckpoint is the largest checkpoint that is read, in bytes: a node with
// 250 pods and 4,096 device IDs has 1 MB.
const maxCheckpoint = 64 << 20

// entry is what the kubelet's checkpoint has of one container and resource.
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

// checkpoint reads the kubelet's file, again only when it was replaced. It is
// safe for use by several goroutines.
type checkpoint struct {
	path string

	mu      sync.Mutex // guards all below
	info    os.FileInfo
	entries []entry
}

// mtimeGrain is how old a file must be to be taken for the same by its time.
const mtimeGrain = time.Second

// read returns the entries, none if there is no file. The kubelet replaces
// the file by renaming, so a read never sees half of one. It writes it before
// Allocate's caller goes on, so at PreStartContainer it has the container.
func (c *checkpoint) read() ([]entry, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.Open(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		c.info, c.entries = nil, nil
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("kubelet checkpoint: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("kubelet checkpoint: %w", err)
	}
	if c.unchanged(info) {
		return slices.Clone(c.entries), nil
	}
	c.info = nil
	b, err := io.ReadAll(io.LimitReader(f, maxCheckpoint))
	if err != nil {
		return nil, fmt.Errorf("kubelet checkpoint: %w", err)
	}
	entries, err := parseCheckpoint(b)
	if err != nil {
		return nil, fmt.Errorf("kubelet checkpoint %s: %w", c.path, err)
	}
	c.info, c.entries = info, entries
	return slices.Clone(entries), nil
}

// unchanged reports whether info is of the file that was read last. Inode
// numbers are used again at once and clocks tick slowly, so a young file is
// always read.
func (c *checkpoint) unchanged(info os.FileInfo) bool {
	return c.info != nil && os.SameFile(c.info, info) && c.info.Size() == info.Size() &&
		c.info.ModTime().Equal(info.ModTime()) && time.Since(info.ModTime()) > mtimeGrain
}
