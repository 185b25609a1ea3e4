package agent

import (
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/test/nodeapi"
)

// api is the API server of the Node, and what was written to it.
type api struct {
	*nodeapi.Server

	// conditions are HeddleReady as it was written, pending HeddleModePending.
	conditions, pending []health.Condition
	// annotations are the Node's after each write of them, and shares the values
	// of SharedGPUs; bound are the values of SGPUBound by pod.
	annotations []map[string]string
	shares      []string
	bound       map[string][]string
	notices     []string
	warnings    []string
}

func newAPI(tb testing.TB) *api {
	tb.Helper()
	a := &api{Server: nodeapi.New(tb, node), bound: map[string][]string{}}
	a.OnWrite = a.record
	return a
}

func (a *api) client() *apiserver.Client {
	return apiserver.New(a.Client(), node, slog.New(slog.DiscardHandler))
}

// record keeps a write.
func (a *api) record(path string, body []byte) {
	var patch struct {
		Metadata struct {
			Annotations map[string]*string `json:"annotations"`
		} `json:"metadata"`
		Status corev1.NodeStatus `json:"status"`
	}
	_ = json.Unmarshal(body, &patch)
	value := func(key string) (string, bool) {
		text, has := patch.Metadata.Annotations[key]
		if text == nil {
			return "", has
		}
		return *text, has
	}
	switch {
	case strings.HasSuffix(path, "/events"):
		e := &a.Events[len(a.Events)-1]
		if about := e.InvolvedObject; about.Kind == "Node" {
			a.notices = append(a.notices, e.Reason+" "+e.Message)
		} else {
			a.warnings = append(a.warnings, about.Namespace+"/"+about.Name+" "+e.Reason+": "+e.Message)
		}
	case strings.HasSuffix(path, "/status"):
		for _, c := range patch.Status.Conditions {
			written := health.Condition{
				Type: string(c.Type), True: c.Status == corev1.ConditionTrue, Reason: c.Reason, Message: c.Message,
			}
			if written.Type == wellknown.ConditionModes {
				a.pending = append(a.pending, written)
			} else {
				a.conditions = append(a.conditions, written)
			}
		}
		if patch.Metadata.Annotations != nil { // They go with the conditions.
			a.annotations = append(a.annotations, maps.Clone(a.Node.Annotations))
		}
	case strings.HasPrefix(path, "/api/v1/nodes/"):
		if text, has := value(wellknown.SharedGPUs); has {
			a.shares = append(a.shares, text)
			return
		}
		a.annotations = append(a.annotations, maps.Clone(a.Node.Annotations))
	default:
		if text, has := value(wellknown.SGPUBound); has {
			name := path[strings.LastIndex(path, "/")+1:]
			a.bound[name] = append(a.bound[name], text)
		}
	}
}

// create adds a pod of the node.
func (a *api) create(p *corev1.Pod) {
	p = p.DeepCopy()
	p.Spec.NodeName = node
	a.AddPod(p)
}

// boundOf are the values of SGPUBound that were written to a pod.
func (a *api) boundOf(pod string) []string {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return slices.Clone(a.bound[pod])
}

// sharedGPUs are those of the Node's annotation.
func (a *api) sharedGPUs(t *testing.T) []allocation.GPU {
	t.Helper()
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if len(a.shares) == 0 || a.shares[len(a.shares)-1] == "" {
		return nil
	}
	all, err := allocation.ParseNodeGPUs(a.shares[len(a.shares)-1])
	if err != nil {
		t.Fatal(err)
	}
	return all.GPUs
}
