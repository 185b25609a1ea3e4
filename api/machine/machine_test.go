package machine

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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

func TestDecodeIsStrict(t *testing.T) {
	for _, tt := range []struct {
		name     string
		old, new string
		want     string
	}{
		{"unknown field", `"node": "n",`, `"node": "n", "nodes": 1,`, `unknown field "nodes"`},
		{"unknown field deep inside", `"numa": null`, `"numa": null, "numaNode": 0`, `unknown field "pci[0].numaNode"`},
		{"a field where it does not belong", `"numa": null`, `"numa": null, "node": 0`, `unknown field "pci[0].node"`},
		{"another case", `"uuid": "GPU-a"`, `"UUID": "GPU-a"`, `unknown field "gpus[0].UUID"`},
		{"another case beside the right one", `"uuid": "GPU-a"`, `"uuid": "GPU-a", "Uuid": "GPU-b"`, `unknown field "gpus[0].Uuid"`},
		{"a field twice", `"node": "n",`, `"node": "n", "node": "m",`, `duplicate field "node"`},
		{"a field twice, once escaped", `"node": "n",`, `"node": "n", "n\u006fde": "m",`, `duplicate field "node"`},
		{"a list twice", `"numa": null}],`, `"numa": null}], "pci": [],`, `duplicate field "pci"`},
		{"wrong type", `"node": "n",`, `"node": 7,`, "cannot unmarshal number into Go struct field Machine.node"},
		{"syntax", `"node": "n",`, `"node": "n"`, "line 4, column 4"},
		{"a second document", "}\n", "}\n{}", "line 8, column 2: invalid character"},
		{"no version", `"version": "heddle.dev/machine/v1",`, ``, `version: ""`},
		{"another version", `machine/v1`, `machine/v2`, `version: "heddle.dev/machine/v2" is not "heddle.dev/machine/v1"`},
		{"GPU without UUID", `"GPU-a"`, `""`, "gpus[0].uuid: empty"},
		{"GPU without health", `"healthy"`, `"fine"`, `gpus[0].health.state: unsupported value "fine"`},
		{"no PCI address", `"address": "0000:18:00.0"`, `"address": "18:00.0"`, "pci[0].address"},
		{"HCA without name", `"mlx5_0"`, `""`, "hcas[0].name: empty"},
		{"HCA without role", `"fabric"`, `"compute"`, `hcas[0].role: unsupported value "compute"`},
		{"negative memory", `"uuid": "GPU-a",`, `"uuid": "GPU-a", "memoryMiB": -1,`, "gpus[0].memoryMiB: -1"},
		{"negative NUMA node", `"numa": null`, `"numa": -1`, "pci[0].numa: -1 is negative; unknown is null"},
		{"address in another case", `"pci": "0000:18:00.0"`, `"pci": "0000:1B:00.0"`, `gpus[0].pci: "0000:1B:00.0" is not as sysfs writes it: 0000:1b:00.0`},
		{"address as NVML writes it", `"pci": "0000:19:00.0"`, `"pci": "00000000:19:00.0"`, `hcas[0].pci: "00000000:19:00.0" is not as sysfs writes it: 0000:19:00.0`},
		{"two GPUs in one slot", `"gpus": [`, `"gpus": [{"uuid": "GPU-b", "pci": "0000:18:00.0", "health": {"state": "lost"}}, `, "gpus[1].pci: 0000:18:00.0 is also gpus[0].pci"},
		{"MIG devices without MIG", `"uuid": "GPU-a",`, `"uuid": "GPU-a", "mig": {"capable": true, "devices": [{"uuid": "MIG-a"}]},`, "gpus[0].mig: has devices and is not enabled"},
		{"MIG on what has none", `"uuid": "GPU-a",`, `"uuid": "GPU-a", "mig": {"enabled": true},`, "gpus[0].mig: enabled and not capable"},
		{"negative slice", `"uuid": "GPU-a",`, `"uuid": "GPU-a", "mig": {"capable": true, "enabled": true, "devices": [{"uuid": "M", "gpuSlices": -1}]},`, "gpus[0].mig.devices[0].gpuSlices: -1 is negative"},
		{"a link to itself", `"uuid": "GPU-a",`, `"uuid": "GPU-a", "nvlinks": [{"peer": "0000:18:00.0", "links": 1}],`, "gpus[0].nvlinks[0].peer: 0000:18:00.0 is the GPU itself"},
		{"no links", `"uuid": "GPU-a",`, `"uuid": "GPU-a", "nvlinks": [{"peer": "nvswitch", "links": 0}],`, "gpus[0].nvlinks[0].links: 0 is less than 1"},
		{"a peer twice", `"uuid": "GPU-a",`, `"uuid": "GPU-a", "nvlinks": [{"peer": "nvswitch", "links": 1}, {"peer": "nvswitch", "links": 2}],`, "gpus[0].nvlinks[1].peer: nvswitch is also gpus[0].nvlinks[0].peer"},
		{"no such fabric state", `"uuid": "GPU-a",`, `"uuid": "GPU-a", "fabric": {"state": "done"},`, `gpus[0].fabric.state: unsupported value "done"`},
		{"a port twice", `"role": "fabric"`, `"role": "fabric", "ports": [{"number": 1}, {"number": 1}]`, "hcas[0].ports[1].number: 1 is also hcas[0].ports[0].number"},
		{"port 0", `"role": "fabric"`, `"role": "fabric", "ports": [{"number": 0}]`, "hcas[0].ports[0].number: 0 is less than 1"},
		{"negative rate", `"role": "fabric"`, `"role": "fabric", "ports": [{"number": 1, "rateGbps": -4}]`, "hcas[0].ports[0].rateGbps: -4 is negative"},
		{"no such probe state", `"node": "n",`, `"node": "n", "probes": [{"name": "nvml", "state": "fine"}],`, `probes[0].state: unsupported value "fine"`},
		{"a probe twice", `"node": "n",`, `"node": "n", "probes": [{"name": "cpu", "state": "ok"}, {"name": "cpu", "state": "ok"}],`, "probes[1].name: cpu is also probes[0].name"},
		{"a NUMA node twice", `"node": "n",`, `"node": "n", "cpu": {"numa": [{"id": 1}, {"id": 1}]},`, "cpu.numa[1].id: 1 is also cpu.numa[0].id"},
		{"one function twice", `"numa": null}]`, `"numa": null}, {"address": "0000:18:00.0"}]`, "pci[1].address: 0000:18:00.0 is also pci[0].address"},
		{
			"one GPU twice", `"health": {"state": "healthy"}}]`,
			`"health": {"state": "healthy"}}, {"uuid": "GPU-a", "pci": "0000:20:00.0", "health": {"state": "lost"}}]`,
			"gpus[1].uuid: GPU-a is also gpus[0].uuid",
		},
		{
			"one HCA twice", `"role": "fabric"}]`, `"role": "fabric"}, {"name": "mlx5_0", "role": "virtual"}]`,
			"hcas[1].name: mlx5_0 is also hcas[0].name",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Decode([]byte(small)); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			_, err := Decode([]byte(strings.Replace(small, tt.old, tt.new, 1)))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
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
