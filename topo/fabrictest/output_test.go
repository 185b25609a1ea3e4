package fabrictest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func text(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestParsePerftest(t *testing.T) {
	const latency = ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.92           4.96         1.96     	       1.97        	0.04   		2.06    		4.96
`
	for _, tt := range []struct {
		name, output string
		want         float64
		fault        string
	}{
		{"bandwidth", text(t, "write_bw.txt"), 394.55, ""},
		{"latency", latency, 1.96, ""},
		{"bandwidth of soft RoCE", text(t, "perftest-write-bw.txt"), 0.26, ""},
		{"latency of soft RoCE", text(t, "perftest-read-lat.txt"), 375.13, ""},
		{"latency by duration", text(t, "perftest-read-lat-duration.txt"), 0, "unsupported columns"},
		{"nothing arrived", text(t, "perftest-lost.txt"), 0, ""},
		{"port down", text(t, "perftest-down.txt"), 0, "no results"},
		{"no results", "Couldn't connect to 10.0.0.1:18515\n Unable to open file descriptor\n", 0, "no results: Unable to open"},
		{"empty", "", 0, "no results"},
		{"MB", " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n", 0, "unsupported columns"},
		{"not a number", " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n 1 2 3 -nan 5\n", 0, `invalid number "-nan"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParsePerftest(tt.output)
			if got != tt.want || (err == nil) != (tt.fault == "") || err != nil && !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("%v, %v; want %v, %q", got, err, tt.want, tt.fault)
			}
		})
	}
}

func TestParseCollective(t *testing.T) {
	wrong := text(t, "all_reduce_perf.txt")
	if _, err := ParseCollective(wrong); err == nil || err.Error() != "2 wrong values at size 8589934592" {
		t.Errorf("wrong values: %v", err)
	}
	got, err := ParseCollective(strings.ReplaceAll(wrong, "      2\n", "      0\n"))
	want := []Size{{536870912, 178.38}, {1073741824, 181.54}, {8589934592, 183.81}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	got, err = ParseCollective(text(t, "mpi-allreduce.txt"))
	want = []Size{{1024, 0.0002}, {4096, 0.0003}, {16384, 0.0004}, {65536, 0.0018}, {262144, 0.0022}, {1048576, 0.0047}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := ParseCollective("gpu-01: Test NCCL failure: unhandled system error\n"); err == nil {
		t.Error("no error of an output without results")
	}
}

func FuzzOutput(f *testing.F) {
	for _, name := range []string{"write_bw.txt", "all_reduce_perf.txt"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, output string) {
		if value, err := ParsePerftest(output); err == nil && !(value >= 0) {
			t.Errorf("value %v", value)
		}
		sizes, err := ParseCollective(output)
		for _, s := range sizes {
			if !(s.Busbw >= 0) || err != nil {
				t.Errorf("size %+v, %v", s, err)
			}
		}
	})
}
