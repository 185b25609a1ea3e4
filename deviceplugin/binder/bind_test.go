package binder

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestContainerGetsGPUsAndHCAsTogether(t *testing.T) {
	for _, first := range []string{gpus, hcas} {
		t.Run(first+" first", func(t *testing.T) {
			r := newRig(t, "dgx-h100")
			p := pod("a")
			r.spec("a", corev1.Container{Name: "main"})
			// The kubelet chose HCAs of the other NUMA node.
			want := asks{gpus: r.cards(1, 3), hcas: r.tickets("mlx5_6", "mlx5_9")}
			names := r.allocate(p, "main", want)
			if _, err := r.enter(names); err == nil || !strings.Contains(err.Error(), "unresolvable") {
				t.Fatalf("before PreStart: %v", err)
			}
			second := gpus
			if first == gpus {
				second = hcas
			}
			for _, resource := range []string{first, second} {
				if err := r.Bind(t.Context(), resource, want[resource]); err != nil {
					t.Fatal(err)
				}
			}
			got := r.mustEnter(names)
			uuids := r.cards(1, 3)
			wantEnv := []string{
				"HEDDLE_GPUS=" + strings.Join(uuids, ","), "HEDDLE_HCAS=mlx5_3,mlx5_5",
				"NCCL_IB_HCA==mlx5_3:1,mlx5_5:1", "NVIDIA_VISIBLE_DEVICES=void", "UCX_NET_DEVICES=mlx5_3:1,mlx5_5:1",
			}
			if diff := cmp.Diff(wantEnv, got.Env); diff != "" {
				t.Errorf("env (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"rdma_cm", "uverbs1", "uverbs3"}, got.Nodes); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			h := hcaNamed(r.machine, "mlx5_3")
			wantHCA := HCA{
				ID: h.PCI, Name: "mlx5_3", PCI: h.PCI, Resource: hcas, Ports: []int{1}, LinkLayer: "InfiniBand",
				RateGbps: new(400.0), Rail: 1, GPU: uuids[0], Class: "PIX", Nodes: []string{"/dev/infiniband/uverbs1"},
			}
			if diff := cmp.Diff(wantHCA, got.Devices.HCAs[0]); diff != "" {
				t.Errorf("JSON, first HCA (-want +got):\n%s", diff)
			}
			wantGPU := GPU{UUID: uuids[1], Index: 3, PCI: r.machine.GPUs[3].PCI, HCA: "mlx5_5", Class: "PIX"}
			if diff := cmp.Diff(wantGPU, got.Devices.GPUs[1]); diff != "" {
				t.Errorf("JSON, second GPU (-want +got):\n%s", diff)
			}
			wantBinding := []Binding{{
				Namespace: "default", Pod: "a", UID: "uid-a", Container: "main", GPUs: slices.Sorted(slices.Values(uuids)),
				HCAs: []string{"mlx5_3", "mlx5_5"}, Class: "PIX", CDINames: names,
				HCAIDs: []string{h.PCI, hcaNamed(r.machine, "mlx5_5").PCI},
			}}
			if diff := cmp.Diff(wantBinding, r.Bindings()); diff != "" {
				t.Errorf("bindings (-want +got):\n%s", diff)
			}
			if e := r.events.take(); e != nil {
				t.Errorf("events: %v", e)
			}
		})
	}
}
