package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

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

// readCheckpoint returns the entries of a checkpoint, none without a file.
// The kubelet replaces the file by renaming, so a read never sees half of one. It
// writes it before Allocate's caller goes on, so at PreStartContainer it has the
// container.
func readCheckpoint(path string) ([]entry, error) {
	content, err := os.ReadFile(path)
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
