package machine

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/test/golden"
)

var update = flag.Bool("update", false, "write the results in testdata")

const machines = "../../test/machines"

func dump(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(machines, name+".json"))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// small is the smallest machine that Decode takes, with one thing of each.
const small = `{
  "version": "heddle.dev/machine/v1",
  "node": "n",
  "pci": [{"address": "0000:18:00.0", "numa": null}],
  "gpus": [{"uuid": "GPU-a", "pci": "0000:18:00.0", "health": {"state": "healthy"}}],
  "hcas": [{"name": "mlx5_0", "pci": "0000:19:00.0", "role": "fabric"}]
}
`

// TestDecodeIsStrict: the file has changes of small, from a text to another, and all faults after each.
func TestDecodeIsStrict(t *testing.T) {
	if _, err := Decode([]byte(small)); err != nil {
		t.Fatal(err)
	}
	golden.Rows(t, "testdata/strict.txt", *update, func(change string) string {
		from, to, _ := strings.Cut(change, "\n->\n")
		if _, err := Decode([]byte(strings.Replace(small, from, to, 1))); err != nil {
			return err.Error()
		}
		return "no error"
	})
}

func TestEveryFaultIsReported(t *testing.T) {
	text := strings.NewReplacer(`"GPU-a"`, `""`, `"mlx5_0"`, `""`, `"fabric"`, `"x"`).Replace(small)
	_, err := Decode([]byte(text))
	for _, want := range []string{"gpus[0].uuid", "hcas[0].name", "hcas[0].role"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func TestCutDumpNamesThePlace(t *testing.T) {
	whole := dump(t, "dgx-h100")
	for _, n := range []int{0, 1, len(whole) / 4, len(whole) / 2, len(whole) - 3} {
		_, err := Decode(whole[:n])
		want := position(whole, int64(n))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("after %d bytes: error %v, want %q in it", n, err, want)
		}
	}
}

func TestDumpHasASize(t *testing.T) {
	if _, err := Decode(make([]byte, MaxDump+1)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("error %v, want one about the size", err)
	}
}

func TestRoundTrip(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(machines, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			text := dump(t, name)
			m, err := Decode(text)
			if err != nil {
				t.Fatal(err)
			}
			again, err := Encode(m)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(text), string(again)); diff != "" {
				t.Errorf("dump of a dump (-file +again):\n%s", diff)
			}
		})
	}
}

func TestEncodeHasNoNullLists(t *testing.T) {
	m := &Machine{
		Version: Version, Node: "n", CPU: CPU{NUMA: []NUMANode{{}}}, PCI: []PCIFunction{{}}, GPUs: []GPU{{}},
		HCAs: []HCA{{Ports: []Port{{}}}},
	}
	b, err := Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		field, isNull := strings.CutSuffix(strings.TrimRight(line, ",\n"), ": null")
		switch strings.Trim(field, ` "`) {
		case "numa", "minor", "ecc", "fabric", "rateGbps": // Unknown is a word of these.
		default:
			if isNull {
				t.Errorf("null list: %s", line)
			}
		}
	}
	if m.GPUs[0].NVLinks != nil || m.HCAs[0].Ports[0].Netdevs != nil || m.PCI[0].Upstream != nil {
		t.Error("Encode changed the machine it was given")
	}
}

func TestSortIsOneOrderForAnyInput(t *testing.T) {
	for _, name := range []string{"dgx-h100", "gb200-tray", "soft-rdma-only", "one-dead-port"} {
		t.Run(name, func(t *testing.T) {
			want, err := Decode(dump(t, name))
			if err != nil {
				t.Fatal(err)
			}
			for seed := range uint64(20) {
				got, err := Decode(dump(t, name))
				if err != nil {
					t.Fatal(err)
				}
				shuffle(got, rand.New(rand.NewPCG(seed, 1)))
				got.Sort()
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("sorted after a shuffle (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func shuffle(m *Machine, r *rand.Rand) {
	swap := func(n int, f func(i, j int)) { r.Shuffle(n, f) }
	swap(len(m.PCI), func(i, j int) { m.PCI[i], m.PCI[j] = m.PCI[j], m.PCI[i] })
	swap(len(m.GPUs), func(i, j int) { m.GPUs[i], m.GPUs[j] = m.GPUs[j], m.GPUs[i] })
	swap(len(m.HCAs), func(i, j int) { m.HCAs[i], m.HCAs[j] = m.HCAs[j], m.HCAs[i] })
	swap(len(m.Probes), func(i, j int) { m.Probes[i], m.Probes[j] = m.Probes[j], m.Probes[i] })
	swap(len(m.Skipped), func(i, j int) { m.Skipped[i], m.Skipped[j] = m.Skipped[j], m.Skipped[i] })
	swap(len(m.CPU.NUMA), func(i, j int) { m.CPU.NUMA[i], m.CPU.NUMA[j] = m.CPU.NUMA[j], m.CPU.NUMA[i] })
}

func TestComparePCIIsNumerical(t *testing.T) {
	order := []string{
		"0000:09:00.0", "0000:0a:00.0", "0000:18:00.0", "0000:18:00.1", "0000:18:1f.0", "0000:b1:00.0", "0001:00:00.0",
		"ffff:00:00.0", "10000:01:00.0", "", "mlx5_0",
	}
	for i, a := range order {
		for j, b := range order {
			if got := ComparePCI(a, b); got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("ComparePCI(%q, %q) = %d", a, b, got)
			}
		}
	}
}

func TestCompareNamesCounts(t *testing.T) {
	order := []string{"ibp3s0", "mlx5_2", "mlx5_10", "mlx5_100", "mlx5_bond_0", "rxe0"}
	for i, a := range order {
		for j, b := range order {
			if got := CompareNames(a, b); got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("CompareNames(%q, %q) = %d", a, b, got)
			}
		}
	}
}

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]Address{
		"0000:18:00.0":  {0, 0x18, 0, 0},
		"0001:Ff:1f.7":  {1, 0xff, 0x1f, 7},
		"10000:01:00.0": {0x10000, 1, 0, 0},
	} {
		if got, err := ParseAddress(text); err != nil || got != want {
			t.Errorf("ParseAddress(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "18:00.0", "0000:18:00", "0000:18:00:0", "0000:18:0.0", "000:18:00.0", "0000:118:00.0", "0000:18:00.00",
		"0000:1g:00.0", "0000:18:20.0", "0000:18:00.8", "0000:18:00.-", "0000:+8:00.0", "000000000:18:00.0", " 0000:18:00.0",
	} {
		if got, err := ParseAddress(text); err == nil {
			t.Errorf("ParseAddress(%q) = %v, want an error", text, got)
		}
	}
}

func TestFunctionByAddress(t *testing.T) {
	m, err := Decode([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	if f := m.Function("0000:18:00.0"); f != &m.PCI[0] {
		t.Errorf("found %v, want the machine's own function", f)
	}
	if f := m.Function("0000:19:00.0"); f != nil {
		t.Errorf("found %v, want nothing", f)
	}
}

// FuzzDecode checks that no input panics, and that what is taken survives a
// round trip.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(small[:len(small)/2]))
	f.Add(dump(f, "soft-rdma-only"))
	f.Add([]byte(`{"version":"heddle.dev/machine/v1","gpus":null,"hcas":[{"name":"\u0000","role":"virtual"}]}`))
	f.Add([]byte("[]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			return
		}
		m.Sort()
		first, err := Encode(m)
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		again, err := Decode(first)
		if err != nil {
			t.Fatalf("decode what was encoded: %v", err)
		}
		second, err := Encode(again)
		if err != nil || string(first) != string(second) {
			t.Fatalf("second round differs: %v", err)
		}
	})
}

func TestHCAIDs(t *testing.T) {
	m := &Machine{HCAs: []HCA{
		{Name: "mlx5_0", PCI: "0000:18:00.0", NodeGUID: "946d:ae03:0012:0000"},
		{Name: "smi1", PCI: "0000:18:00.0"},
		{Name: "rxe0", NodeGUID: "0255:acff:fe11:0003"},
		{Name: "siw0", NodeGUID: "0000:0000:0000:0000"},
	}}
	want := []string{"0000:18:00.0", "0000:18:00.0/smi1", "0255:acff:fe11:0003", "siw0"}
	if diff := cmp.Diff(want, m.HCAIDs()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParentGPU(t *testing.T) {
	m := &Machine{GPUs: []GPU{
		{UUID: "GPU-a"},
		{UUID: "GPU-b", MIG: MIG{Devices: []MIGDevice{{UUID: "MIG-1"}, {UUID: "MIG-2"}}}},
	}}
	for uuid, want := range map[string]string{"MIG-2": "GPU-b", "GPU-b": "", "MIG-3": ""} {
		if got := m.ParentGPU(uuid); got != want {
			t.Errorf("%s: got %q, want %q", uuid, got, want)
		}
	}
	if got := (*Machine)(nil).ParentGPU("MIG-1"); got != "" {
		t.Errorf("no machine: got %q", got)
	}
}

func TestPartitionOf(t *testing.T) {
	for id, want := range map[string]string{
		Partition("GPU-1-p2", 7):  "GPU-1-p2",
		"GPU-1":                   "",
		"GPU-1-p":                 "",
		"GPU-1-pci":               "",
		"GPU-1-p-1":               "",
		"GPU-1-p256":              "",
		Partition("0x1a2b3c", 63): "0x1a2b3c",
	} {
		if got := PartitionOf(id); got != want {
			t.Errorf("PartitionOf(%q) = %q, want %q", id, got, want)
		}
	}
}
