package gpu

import (
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/test/golden"
)

// server is an API server with one Node and, where reports is set, its device
// plugin.
type server struct {
	t       *testing.T
	node    corev1.Node
	reports *report.Report
	// others is how many writes another client makes first.
	others int
	writes []string
	// answers, unless nil, is what the device plugin answers to a release.
	answers *release.Status
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer := func(v any) {
		if err := json.NewEncoder(w).Encode(v); err != nil {
			s.t.Error(err)
		}
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v1/nodes/gpu-1":
		answer(s.node)
	case "PATCH /api/v1/nodes/gpu-1":
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" {
			s.t.Errorf("%v, %v", err, r.Header)
		}
		if s.others > 0 {
			s.others--
			s.node.ResourceVersion += "0"
			s.fail(w, http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
		s.writes = append(s.writes, string(body))
		if s.answers != nil {
			s.answerRelease(body)
		}
		answer(s.node)
	case "GET /api/v1/pods":
		list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		if s.reports != nil {
			p := corev1.Pod{}
			p.Namespace, p.Name = "heddle-system", "dp-x"
			p.Labels = map[string]string{"app.kubernetes.io/name": "heddle-device-plugin"}
			p.Annotations = map[string]string{"prometheus.io/port": "9999"}
			list.Items = append(list.Items, corev1.Pod{}, p)
		}
		answer(list)
	case "GET /api/v1/namespaces/heddle-system/pods/dp-x/portforward", "POST /api/v1/namespaces/heddle-system/pods/dp-x/portforward":
		clitest.Forward("9999", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != report.Path || json.NewEncoder(w).Encode(s.reports) != nil {
				s.t.Errorf("asked for %s", r.URL.Path)
			}
		}))(w, r)
	default:
		s.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

func (*server) fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason,
		Code: int32(code), Message: string(reason),
	})
}

// run runs the command against the server.
func (s *server) run(args ...string) (string, error) {
	s.t.Helper()
	return clitest.RunOn(s.t, s, NewCommand(), args...)
}

func newServer(t *testing.T, cordoned string, reports *report.Report) *server {
	t.Helper()
	s := &server{t: t, reports: reports}
	s.node.APIVersion, s.node.Kind, s.node.Name, s.node.ResourceVersion = "v1", "Node", "gpu-1", "7"
	if cordoned != "" {
		s.node.Annotations = map[string]string{wellknown.CordonedGPUs: cordoned}
	}
	return s
}

func two() *report.Report {
	return &report.Report{Node: "gpu-1", GPUs: []report.GPU{
		{Index: 0, UUID: "GPU-a", Mode: "native", Wanted: "native"},
		{Index: 1, UUID: "GPU-b", PCI: "0000:3B:00.0", Mode: "native", Wanted: "sgpu", Until: "ml/train ends"},
	}}
}

var update = flag.Bool("update", false, "write the results in testdata")

// TestCordon: the file has commands, before each what differs from a Node with two GPUs that are not cordoned, and
// then what is written to the Node and printed.
func TestCordon(t *testing.T) {
	golden.Rows(t, "testdata/cordon.txt", *update, func(text string) string {
		lines := strings.Split(text, "\n")
		s := newServer(t, "", two())
		for _, line := range lines[:len(lines)-1] {
			switch word, value, _ := strings.Cut(line, " "); word {
			case "has":
				s.node.Annotations = map[string]string{wellknown.CordonedGPUs: value}
			case "others":
				s.others, _ = strconv.Atoi(value)
			default:
				if s.reports = nil; value != "none" {
					s.reports = &report.Report{Node: value}
				}
			}
		}
		out, err := s.run(strings.Fields(lines[len(lines)-1])...)
		all := append([]string{}, s.writes...)
		all = append(all, strings.TrimSuffix(out, "\n"))
		if err != nil {
			all = append(all, "error: "+err.Error())
		}
		return strings.TrimSpace(strings.Join(all, "\n"))
	})
}

func TestList(t *testing.T) {
	for _, tt := range []struct {
		name    string
		reports *report.Report
		want    string
	}{
		{"all is known", two(), `NODE   GPU  UUID   PCI           MODE    CORDONED  PENDING
gpu-1  0    GPU-a  -             native  no        -
gpu-1  1    GPU-b  0000:3B:00.0  native  yes       GPU 1: native until ml/train ends, then sgpu
gpu-1  ?    GPU-c  -             -       yes       -
`},
		{"the device plugin does not answer", nil, `The GPUs of node gpu-1 are not known: heddle-device-plugin has no pod on it.

NODE   GPU  UUID   PCI  MODE  CORDONED  PENDING
gpu-1  ?    GPU-b  -    -     yes       -
gpu-1  ?    GPU-c  -    -     yes       -
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := newServer(t, "GPU-c,GPU-b", tt.reports).run("list", "gpu-1")
			if diff := cmp.Diff(tt.want, out); diff != "" || err != nil {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}
