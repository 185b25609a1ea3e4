package mxcd

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The answers are of the form that owners of such machines published, shortened.
const (
	list = `mx-smi  version: 2.2.9
GPU#0    MXC500      0000:08:00.0   Available (UUID: GPU-e702f06b-bbd6-bc06-5196-90a5554a24ba)
GPU#7    MXC500      0000:3c:00.0   Available (UUID: GPU-0e715b45-bcef-1500-e2db-752724095700)
`
	newTable = `mx-smi  version: 2.2.9

=================== MetaX System Management Interface Log ===================
Timestamp                                         : Wed Feb 11 09:55:49 2026

Attached GPUs                                     : 2
+---------------------------------------------------------------------------------+
| MX-SMI 2.2.9                       Kernel Mode Driver Version: 3.4.4            |
| MACA Version: 3.3.0.15             BIOS Version: 1.30.0.0                       |
|------------------+-----------------+---------------------+----------------------|
| Board       Name | GPU   Persist-M | Bus-id              | GPU-Util      sGPU-M |
| Pwr:Usage/Cap    | Temp       Perf | Memory-Usage        | GPU-State            |
|==================+=================+=====================+======================|
| 0     MetaX C500 | 0           Off | 0000:0e:00.0        | 0%          Disabled |
| 57W / 350W       | 35C          P0 | 826/65536 MiB       | Available            |
+------------------+-----------------+---------------------+----------------------+
| 1     MetaX C500 | 1           Off | 0000:0F:00.0        | 0%          Disabled |
| 58W / 350W       | 37C          P0 | 826/65536 MiB       | Available            |
+------------------+-----------------+---------------------+----------------------+
`
	oldTable = `| MX-SMI 2.1.6                        Kernel Mode Driver Version: 2.5.014         |
| MACA Version: unknown               BIOS Version: 1.13.4.0                      |
|------------------------------------+---------------------+----------------------+
| 0           MXC550                 | 0000:2a:00.0        | 0%                   |
| 31C         44W                    | 810/65536 MiB       |                      |
+------------------------------------+---------------------+----------------------+
`
	matrix = `Attached GPUs                                     : 3
Device link type matrix
        GPU0    GPU1    GPU2    NIC0    Node Affinity  CPU Affinity
GPU0    X       MX      NODE    PIX     0              0-31,64-95
GPU1    MX      X       SYS     PIX     0              0-31,64-95
GPU2    NODE    SYS     X       NODE    1              32-63
NIC0    PIX     PIX     NODE    X

Legend:
  X    = Self
  MX   = Connection traversing MetaXLink
NIC Legend:

  NIC0: mlx5_0
`
)

func TestParseList(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []listed
		err        string
	}{
		{"sound", list, []listed{
			{0, "0000:08:00.0", "MXC500", "GPU-e702f06b-bbd6-bc06-5196-90a5554a24ba", "Available"},
			{7, "0000:3c:00.0", "MXC500", "GPU-0e715b45-bcef-1500-e2db-752724095700", "Available"},
		}, ""},
		{"a GPU out of reach", "GPU#1 MXC550 0000:2B:00.0 Not Available(MetaX Sysfs File Unaccessible)\n", []listed{
			{1, "0000:2b:00.0", "MXC550", "", "Not Available(MetaX Sysfs File Unaccessible)"},
		}, ""},
		{"one line of another form", list + "GPU#8 MXC500 bus Not Available\n", []listed{
			{0, "0000:08:00.0", "MXC500", "GPU-e702f06b-bbd6-bc06-5196-90a5554a24ba", "Available"},
			{7, "0000:3c:00.0", "MXC500", "GPU-0e715b45-bcef-1500-e2db-752724095700", "Available"},
		}, "it has no PCI address"},
		{"another language", "mx-smi 版本: 2.2.9\n没有设备\n", nil, "no GPU in"},
		{"nothing", "", nil, "no GPU in"},
		{"cut off", "GPU#0    MXC5", nil, "it has no index, name, address and state"},
		{"a storm", strings.Repeat("GPU#x\n", 1000), nil, "more than 256 GPUs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseList(tt.text)
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(listed{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if partial := got != nil && tt.err != ""; errors.Is(err, errPartial) != partial {
				t.Errorf("error %v, want partial %v", err, partial)
			}
			checkError(t, err, tt.err)
		})
	}
}

func TestParseTable(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       table
		err        string
	}{
		{"2.2", newTable, table{"3.4.4", "3.3.0.15", map[string]int64{"0000:0e:00.0": 65536, "0000:0f:00.0": 65536}}, ""},
		{"2.1", oldTable, table{"2.5.014", "", map[string]int64{"0000:2a:00.0": 65536}}, ""},
		{"no memory", strings.ReplaceAll(oldTable, "MiB", "GiB"), table{"2.5.014", "", map[string]int64{}}, "no GPU with its memory"},
		{"another language", "| 显存 |", table{memoryMiB: map[string]int64{}}, "no GPU with its memory"},
		{
			"no number for one of two", strings.Replace(newTable, "/65536", "/NA", 1),
			table{"3.4.4", "3.3.0.15", map[string]int64{"0000:0f:00.0": 65536}},
			"memory of 0000:0e:00.0",
		},
		{"no number", strings.ReplaceAll(oldTable, "/65536", "/NA"), table{"2.5.014", "", map[string]int64{}}, "memory of 0000:2a:00.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseTable(tt.text)
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(table{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			checkError(t, err, tt.err)
		})
	}
}

func TestParseTopology(t *testing.T) {
	half, _, _ := strings.Cut(matrix, "SYS     PIX")
	for _, tt := range []struct {
		name, text string
		want       map[int][]int
		err        string
	}{
		{"with adapters", matrix, map[int][]int{0: {1}, 1: {0}, 2: {}}, ""},
		{"one GPU", "        GPU0    Node Affinity  CPU Affinity\nGPU0    X       0              0-31\n", map[int][]int{0: {}}, ""},
		{"a row is missing", strings.Replace(matrix, "GPU2    NODE", "        NODE", 1), map[int][]int{0: {1}, 1: {0}}, "3 columns and 2 rows"},
		{"cut off in a row", half, map[int][]int{0: {1}, 1: {0}}, "it is cut off"},
		{"a word that is not known", strings.ReplaceAll(matrix, "SYS", "系统"), map[int][]int{0: {1}, 1: {0}, 2: {}}, "is not known"},
		{"nothing", "", map[int][]int{}, "0 columns and 0 rows"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseTopology(tt.text)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			checkError(t, err, tt.err)
		})
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	if err != nil && len(err.Error()) > 400 && !strings.Contains(want, "more than") {
		t.Errorf("error of %d bytes", len(err.Error()))
	}
}

// FuzzParse holds what the rest of the package relies on: no answer of a tool makes a
// GPU without a place, an invalid memory size, or a link to nowhere.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{list, newTable, oldTable, matrix, "", "GPU0\nGPU0 MX", "GPU#0 a 0000:00:00.0 (UUID: "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		gpus, _ := parseList(text)
		for _, g := range gpus {
			if !isAddress(g.address) || g.name == "" || g.index < 0 || len(g.state)+len(g.uuid) > 160 {
				t.Errorf("%+v", g)
			}
		}
		table, _ := parseTable(text)
		for address, mib := range table.memoryMiB {
			if !isAddress(address) || mib <= 0 {
				t.Errorf("%s has %d MiB", address, mib)
			}
		}
		links, err := parseTopology(text)
		for row, peers := range links {
			if err != nil && !errors.Is(err, errPartial) || row < 0 || row >= maxGPUs || len(peers) > maxGPUs {
				t.Errorf("row %d has %d links, error %v", row, len(peers), err)
			}
		}
	})
}
