package inspect

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/test/golden"
)

var update = flag.Bool("update", false, "write the golden files beside the machine files")

const machines = "../../../../test/machines"

// TestGoldenFiles shows every machine file in every format. A folder
// NAME.config beside a machine file is its configuration.
func TestGoldenFiles(t *testing.T) {
	files, err := filepath.Glob(machines + "/*.json")
	if err != nil || len(files) < 16 {
		t.Fatalf("%d machine files: %v", len(files), err)
	}
	for _, file := range files {
		base := strings.TrimSuffix(file, ".json")
		for _, format := range []string{"labels", "resources", "matrix", "table"} {
			t.Run(filepath.Base(base)+"/"+format, func(t *testing.T) {
				golden.Compare(t, base+"."+format, show(t, file, format), *update)
			})
		}
		t.Run(filepath.Base(base)+"/json", func(t *testing.T) {
			golden.Compare(t, file, show(t, file, "json"), *update) // The dump of a dump.
		})
	}
}

// show runs the command as a person would.
func show(t *testing.T, file, format string) string {
	t.Helper()
	args := []string{"--machine", file, "-o", format}
	if dir := strings.TrimSuffix(file, ".json") + ".config"; exists(dir) {
		args = append(args, "--config", dir)
	}
	out, warnings, err := clitest.Run(t, NewCommand(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out + warnings
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestTaintsAreShownAfterLabels(t *testing.T) {
	dir := t.TempDir()
	text := "preset: scheme\nusage: inference\ncontrolPlane: true\n"
	if err := os.WriteFile(filepath.Join(dir, "cluster-config"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "version"), []byte("v1"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, err := clitest.Run(t, NewCommand(), "--machine", machines+"/h20-4nic.json", "--config", dir, "-o", "labels")
	if err != nil {
		t.Fatal(err)
	}
	_, taints, _ := strings.Cut(out, "nvidia.com/vgpu.present=false\n")
	want := "taint nvidia.com/gpu.product=NVIDIA-H20:NoSchedule\ntaint heddle.dev/node.usage=inference:NoSchedule\n" +
		"taint heddle.dev/control-plane=:NoSchedule\n"
	if diff := cmp.Diff(want, taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}

func TestControlCharactersAreReplaced(t *testing.T) {
	whole, err := os.ReadFile(machines + "/soft-rdma-only.json")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "hostile.json")
	hostile := strings.ReplaceAll(string(whole), `"rxe0"`, `"rxe\u001b[2J\n"`)
	if err := os.WriteFile(file, []byte(hostile), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"table", "matrix", "resources"} {
		if out := show(t, file, format); strings.ContainsRune(out, 0x1b) || !strings.Contains(out, "rxe?[2J?") {
			t.Errorf("-o %s: %q", format, out)
		}
	}
}

// TestWide shows what the table leaves out.
func TestWide(t *testing.T) {
	out := show(t, machines+"/dgx-h100.json", "wide")
	for _, want := range []string{"  UUID\n", "  GPU-", "NODE GUID\n", "mlx5_core"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestYAML has what the dump has.
func TestYAML(t *testing.T) {
	file := machines + "/dgx-h100.json"
	dump, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := yaml.JSONToYAML(dump)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), show(t, file, "yaml")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestMissingLabelsAreReported has a rule that cannot be evaluated, and an entry
// that only the Node's labels can choose.
func TestMissingLabelsAreReported(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"version": "v1", "cluster-config": "labels: [{key: a, value: 'machine.gpus[40].uuid'}, {key: b, value: node}]\n",
		"nodes-config": "- nodeSelector: {pool: inference}\n  labels: []\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const missing = "label a cannot be made: value: evaluate: index out of bounds: 40"
	const unsure = "give --node-labels"
	for _, tt := range []struct {
		name           string
		args           []string
		stdout, stderr []string
		silent         string
	}{
		{"labels", []string{"-o", "labels"}, []string{"\nb=h20-4nic\n"}, []string{missing, unsure}, "a="},
		{"table", nil, []string{"PROBLEMS", "label a: cannot be made"}, []string{unsure}, ""},
		{"the Node's labels", []string{"-o", "labels", "--node-labels", "pool=inference,x=y"}, nil, nil, "heddle:"},
		{"other labels", []string{"-o", "labels", "--node-labels", "pool=training"}, nil, []string{missing}, unsure},
		{"a dump", []string{"-o", "json"}, nil, nil, "heddle:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"--machine", machines + "/h20-4nic.json", "--config", dir}, tt.args...)
			stdout, stderr, err := clitest.Run(t, NewCommand(), args...)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.stdout {
				if !strings.Contains("\n"+stdout, want) {
					t.Errorf("stdout lacks %q:\n%s", want, stdout)
				}
			}
			for _, want := range tt.stderr {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr lacks %q: %s", want, stderr)
				}
			}
			if tt.silent != "" && strings.Contains("\n"+stdout+stderr, "\n"+tt.silent) ||
				tt.silent == unsure && strings.Contains(stderr, unsure) {
				t.Errorf("unexpected %q:\n%s%s", tt.silent, stdout, stderr)
			}
		})
	}
}

func TestRanges(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "GPU0": "GPU0", "GPU0 GPU1": "GPU0 GPU1", "GPU0 GPU1 GPU2 GPU3": "GPU0-3",
		"GPU4 GPU6 GPU7 GPU8 mlx5_9": "GPU4 GPU6-8 mlx5_9", "a b c": "a b c", "x01 x02 x03": "x01 x02 x03",
		"mlx5_9 mlx5_10 mlx5_11": "mlx5_9-11", "1 2 3": "1-3",
	} {
		if got := ranges(strings.Fields(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
