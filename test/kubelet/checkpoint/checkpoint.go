// Package checkpoint owns the format of kubelet_internal_checkpoint, the file
// in which the kubelet keeps who holds which devices. It writes the file as
// the kubelet does and never decides anything. The names of its types are the
// kubelet's own, because the checksum is taken over a dump that contains them
// (k8s.io/kubernetes v1.37 pkg/kubelet/cm/devicemanager/checkpoint).
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"

	"k8s.io/utils/dump"
)

// File is the checkpoint's name in the device plugin directory.
const File = "kubelet_internal_checkpoint"

// ErrCorrupt is a checkpoint that parses and has the wrong checksum.
var ErrCorrupt = errors.New("checkpoint is corrupted")

// DevicesPerNUMA maps a NUMA node to device IDs; -1 is "no topology".
type DevicesPerNUMA map[int64][]string

// PodDevicesEntry has the devices of one resource that one container holds. AllocResp is a
// marshaled v1beta1.ContainerAllocateResponse.
type PodDevicesEntry struct {
	PodUID        string         `json:"PodUID"`
	ContainerName string         `json:"ContainerName"`
	ResourceName  string         `json:"ResourceName"`
	DeviceIDs     DevicesPerNUMA `json:"DeviceIDs"`
	AllocResp     []byte         `json:"AllocResp"`
}

type checkpointData struct {
	PodDeviceEntries  []PodDevicesEntry   `json:"PodDeviceEntries"`
	RegisteredDevices map[string][]string `json:"RegisteredDevices"`
}

// Checksum is FNV-1a (32 bit) of the dump of the data.
type Checksum uint64

// Data is the whole file.
type Data struct {
	Data     checkpointData `json:"Data"`
	Checksum Checksum       `json:"Checksum"`
}

// New makes a checkpoint of entries and of the healthy IDs by resource.
func New(entries []PodDevicesEntry, registered map[string][]string) *Data {
	return &Data{Data: checkpointData{PodDeviceEntries: entries, RegisteredDevices: registered}}
}

// Entries lists what containers hold.
func (d *Data) Entries() []PodDevicesEntry { return d.Data.PodDeviceEntries }

// Registered lists the resources that were registered, with their healthy IDs.
func (d *Data) Registered() map[string][]string { return d.Data.RegisteredDevices }

// Write stores the checkpoint under path by rename, as the kubelet's file
// store does.
func (d *Data) Write(path string) error {
	d.Checksum = sum(d.Data)
	blob, err := json.Marshal(*d)
	if err != nil {
		return fmt.Errorf("encode checkpoint: %w", err)
	}
	// The kubelet's store names its temporary files ".<key><random>".
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, blob, 0o600); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}

// Read loads a checkpoint. A missing file is an empty checkpoint.
func Read(path string) (*Data, error) {
	d := &Data{}
	blob, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	if err := json.Unmarshal(blob, d); err != nil {
		return nil, fmt.Errorf("parse checkpoint %s: %w", path, err)
	}
	if d.Checksum != sum(d.Data) {
		return nil, fmt.Errorf("checkpoint %s: %w", path, ErrCorrupt)
	}
	return d, nil
}

func sum(data checkpointData) Checksum {
	hash := fnv.New32a()
	_, _ = fmt.Fprintf(hash, "%v", dump.ForHash(data))
	return Checksum(hash.Sum32())
}
