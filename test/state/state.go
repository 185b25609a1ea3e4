// Package state makes a real device state of a node on which no pod runs, for the
// tests of what is in front of it.
package state

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/internal/hostfile"
)

// Records is the directory of the checkpoint below that of the state.
const Records = "records"

// New makes a device state with these checkpoint entries, whose files are in dir.
func New(tb testing.TB, dir string, inv *inventory.Inventory, entries ...*allocate.Entry) *devicestate.State {
	tb.Helper()
	for _, e := range entries {
		content, err := json.Marshal(e)
		if err == nil {
			err = hostfile.Write(filepath.Join(dir, Records, e.Device+".json"), content, 0o600, hostfile.Quick)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	return devicestate.New(devicestate.Options{
		NodeName: "gpu-1", StateDir: dir, CDIDir: filepath.Join(dir, "cdi"),
		Kubelet: kubelet.NewReader(noPods{}, dir, time.Now),
	}, inv)
}

// Entry is the checkpoint entry of a container that runs: its device ID stands for
// an HCA, or for a GPU that it shares, or is a GPU.
func Entry(kind cdi.Kind, resource, id, device string) *allocate.Entry {
	ids := []string{id}
	e := &allocate.Entry{
		Kind: kind, Device: cdi.NewName(kind, resource, ids).Device, Resource: resource, IDs: ids,
		Owner: &kubelet.Container{Pod: kubelet.Pod{Namespace: "default", Name: "runs"}, Name: id},
	}
	switch kind {
	case cdi.RDMA:
		e.HCAs = []string{device}
	case cdi.SGPU:
		e.Shares = []allocation.Share{{UUID: device}}
	case cdi.GPU, cdi.Claim:
	}
	return e
}

type noPods struct {
	podresources.PodResourcesListerClient
}

func (noPods) List(
	context.Context, *podresources.ListPodResourcesRequest, ...grpc.CallOption,
) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{}, nil
}
