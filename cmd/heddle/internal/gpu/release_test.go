package gpu

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// answerRelease is the device plugin's answer to what was written to its Node.
func (s *server) answerRelease(body []byte) {
	var patch struct {
		Metadata struct {
			Annotations map[string]*string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		s.t.Error(err)
	}
	s.node.Annotations = map[string]string{}
	asked := patch.Metadata.Annotations[wellknown.GPURelease]
	if asked == nil {
		return
	}
	status := *s.answers
	var err error
	if status.Request, err = release.Parse(*asked); err != nil {
		s.t.Error(err)
	}
	status.Released = true
	text, err := json.Marshal(status)
	if err != nil {
		s.t.Error(err)
	}
	s.node.Annotations[wellknown.GPURelease] = *asked
	s.node.Annotations[wellknown.GPUReleaseStatus] = string(text)
}

func TestRelease(t *testing.T) {
	holders := release.Status{
		Pods:      []release.Pod{{Namespace: "ml", Name: "train", Container: "main", GPUs: []string{"GPU-a"}}},
		Processes: []release.Process{{PID: 77, Command: "dcgm", Devices: []string{"/dev/nvidia0"}}},
		Unseen:    "3 processes could not be looked into",
	}
	for _, tt := range []struct {
		name    string
		reports *report.Report
		holders release.Status
		args    []string
		want    []string
		gpus    string
		err     string
	}{
		{
			"all GPUs, and nothing holds them", two(),
			release.Status{},
			[]string{"--for", "30m"},
			[]string{"No new pod gets a GPU", "Nothing that heddle knows of holds them"},
			"", "",
		},
		{
			"what holds them", two(), holders, nil,
			[]string{"ml/train  main       GPU-a", "77   dcgm     -    /dev/nvidia0", "3 processes could not"},
			"", "findings",
		},
		{"by index", two(), release.Status{}, []string{"1"}, []string{"GPU-b"}, `,"gpus":["GPU-b"]`, ""},
		{"by UUID", two(), release.Status{}, []string{"GPU-b", "GPU-a"}, nil, `,"gpus":["GPU-a","GPU-b"]`, ""},
		{"by UUID, unheard", nil, release.Status{}, []string{"GPU-c"}, nil, `,"gpus":["GPU-c"]`, ""},
		{"no such GPU", two(), release.Status{}, []string{"7"}, nil, "", `has no GPU "7"; it has 0 (GPU-a), 1 (GPU-b)`},
		{"an index, unheard", nil, release.Status{}, []string{"0"}, nil, "", "give the UUID"},
		{"by PCI address", two(), release.Status{}, []string{"3b:00.0"}, nil, `,"gpus":["GPU-b"]`, ""},
		{"for ever", two(), release.Status{}, []string{"--for", "48h"}, nil, "", "not between"},
		{"undo of one", two(), release.Status{}, []string{"--undo", "1"}, nil, "", "goes with neither"},
		{"undo", two(), release.Status{}, []string{"--undo"}, []string{"are not released"}, "null", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t, "", tt.reports)
			s.node.Annotations = map[string]string{wellknown.GPURelease: `{"until":"2026-01-01T00:00:00Z"}`}
			s.answers = &tt.holders
			out, err := s.run(append([]string{"release", "gpu-1"}, tt.args...)...)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("%v, want %q", err, tt.err)
			}
			if err != nil && !errors.Is(err, cli.ErrFindings) {
				if len(s.writes) > 0 {
					t.Errorf("wrote %q", s.writes)
				}
				return
			}
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if len(s.writes) != 1 || !strings.Contains(strings.ReplaceAll(s.writes[0], `\"`, `"`), tt.gpus) {
				t.Errorf("wrote %q, want %q in it", s.writes, tt.gpus)
			}
		})
	}
}

func TestReleaseAsJSON(t *testing.T) {
	s := newServer(t, "", two())
	s.answers = &release.Status{}
	began := time.Now()
	out, err := s.run("release", "gpu-1", "--for", "1h", "-o", "json")
	var got release.Status
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || !got.Released || !got.Request.Active(began.Add(59*time.Minute)) {
		t.Errorf("%+v, %v from %s", got, err, out)
	}
}
