package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each device of a claim adds itself: the container finds all of them, and NCCL the HCAs of all.
func TestDevices(t *testing.T) {
	const first = `{"namespace":"ml","pod":"","container":"","gpus":[{"uuid":"GPU-a"}],"hcas":[{"name":"mlx5_0","ports":[1]}]}`
	const second = `{"namespace":"ml","pod":"","container":"","gpus":[{"uuid":"GPU-b"}],"hcas":[{"name":"mlx5_1","ports":[1,2]}]}`
	for name, tt := range map[string]struct {
		env         string
		had, nccl   string // what the image has in the two files
		gpus, hints string
	}{
		"empty image":       {gpus: "GPU-a GPU-b", hints: "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_1:2\n"},
		"a file of old":     {had: `{"gpus":[{"uuid":"GPU-x"}],"hcas":[]}`, gpus: "GPU-a GPU-b", hints: "mlx5_1:2\n"},
		"no JSON":           {had: `hello`, gpus: "GPU-a GPU-b", hints: "mlx5_1:2\n"},
		"its own variable":  {env: `"NCCL_IB_HCA=mlx5_7"`, gpus: "GPU-a GPU-b"},
		"its own file":      {nccl: "NCCL_IB_HCA=mlx5_9\n", gpus: "GPU-a GPU-b", hints: "NCCL_IB_HCA=mlx5_9\n"},
		"its own and ours ": {nccl: "NCCL_DEBUG=INFO", gpus: "GPU-a GPU-b", hints: "NCCL_DEBUG=INFO\n# The"},
	} {
		t.Run(name, func(t *testing.T) {
			proc, bundle := t.TempDir(), t.TempDir()
			root := filepath.Join(proc, "7", "root", bundle, "rootfs")
			if err := os.MkdirAll(filepath.Join(root, "etc/heddle"), 0o750); err != nil {
				t.Fatal(err)
			}
			if tt.had == "" {
				_ = os.Remove(filepath.Join(root, "etc/heddle"))
			}
			for file, text := range map[string]string{
				filepath.Join(bundle, "config.json"):           `{"root": {"path": "rootfs"}, "process": {"env": [` + tt.env + `]}}`,
				filepath.Join(root, "etc/heddle/devices.json"): tt.had, filepath.Join(root, "etc/nccl.conf"): tt.nccl,
			} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, text := range []string{first, second, second} {
				state := fmt.Sprintf(`{"pid": 7, "bundle": %q}`, bundle)
				if err := addDevices(proc, strings.NewReader(state), []string{text}); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(filepath.Join(root, "etc/heddle/devices.json"))
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				GPUs []struct {
					UUID string `json:"uuid"`
				} `json:"gpus"`
			}
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			var gpus []string
			for _, g := range got.GPUs {
				gpus = append(gpus, g.UUID)
			}
			if strings.Join(gpus, " ") != tt.gpus {
				t.Errorf("GPUs %v, want %s", gpus, tt.gpus)
			}
			hints, _ := os.ReadFile(filepath.Join(root, "etc/nccl.conf"))
			if !strings.Contains(string(hints), tt.hints) || tt.hints == "" && len(hints) > 0 {
				t.Errorf("nccl.conf has %q, want %q in it", hints, tt.hints)
			}
		})
	}
}

// Variables limit one share in a container.
func TestTwoShares(t *testing.T) {
	d, err := parseDevices([]byte(`{"gpus":[{"uuid":"GPU-a","share":{}},{"uuid":"GPU-b"},{"uuid":"GPU-c","share":{}}],"hcas":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.checkShares([]string{"PATH=/bin"}); err != nil {
		t.Errorf("without variables: %v", err)
	}
	for _, variable := range []string{"CUDA_DEVICE_MEMORY_LIMIT_0=1g", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M"} {
		if err := d.checkShares([]string{variable}); err == nil || !strings.Contains(err.Error(), "2 shares in one container") {
			t.Errorf("%s: %v", variable, err)
		}
	}
}
