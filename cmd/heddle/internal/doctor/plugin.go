package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

const (
	pluginFlag = "device-plugin"
	// defaultPluginURL is the address of heddle-device-plugin on the node's network.
	defaultPluginURL = "http://127.0.0.1:9102"
	pluginTimeout    = time.Second
	// maxReport bounds the bytes read of an answer: a node has some hundred bindings of some
	// hundred bytes.
	maxReport    = 16 << 20
	maxRejection = 4 << 10
)

// askPlugin asks a device plugin at its metrics address.
func askPlugin(ctx context.Context, url string) (*report.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+report.Path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", url, err)
	}
	// The node's own address is not reached through a proxy.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		// It has how to be let in.
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxRejection))
		return nil, fmt.Errorf("ask %s: %s: %s", request.URL, response.Status, bytes.TrimSpace(text))
	}
	r := &report.Report{}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxReport)).Decode(r); err != nil {
		return nil, fmt.Errorf("decode the answer of %s: %w", request.URL, err)
	}
	if r.Node == "" {
		return nil, errors.New("what answers at " + request.URL.String() + " is another program")
	}
	return r, nil
}

// checkSilence explains that the device plugin did not answer, where an answer was expected.
func (in *input) checkSilence(l *Findings) {
	switch {
	case !in.here:
		l.note(devicePlugin,
			"It takes the right to create pods/portforward in heddle's namespace; or run heddle doctor on the node.",
			"which container has which devices is not known: %v", in.pluginErr)
	case in.pluginExpected, in.node != nil && in.node.offers(&in.config):
		l.note(devicePlugin, "It runs on the node, and answers at its --metrics-address: see --"+pluginFlag+".",
			"the device plugin does not answer: %v", in.pluginErr)
	}
}

// checkPlugin explains what the device plugin reports.
func checkPlugin(l *Findings, r *report.Report) {
	for i := range r.Resources {
		checkServed(l, &r.Resources[i])
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		if pending := g.Pending(); pending != "" {
			l.note("Node "+r.Node, "", "%s", pending)
		}
		if g.Cordoned {
			l.cordon(r.Node, g.UUID, ": no new pod gets it")
		}
	}
	for _, uuid := range r.UnknownCordoned {
		l.cordon(r.Node, uuid, " and not on this node")
	}
	for i := range r.Rejected {
		p := &r.Rejected[i]
		remedy := rejectedRemedies()[p.Kind]
		if p.Never {
			remedy = "This node can never give it that: correct its request. Without a controller it is evicted after " +
				"sgpu.rejectedFor, for HCAs after a minute."
		}
		l.problem("pod "+podName(p.Namespace, p.Pod, p.UID), remedy,
			"container %s gets no GPU since %s: %s", p.Container, rfc3339(p.Since), p.Reason)
	}
	for i := range r.Bindings {
		if b := &r.Bindings[i]; b.Unrecorded {
			l.problem("pod "+podName(b.Namespace, b.Pod, b.UID),
				"It runs on. Delete the pod: its controller makes another, with GPUs that are in the checkpoint.",
				"container %s has a share without a checkpoint entry, which was lost or is another "+
					"device plugin's; no other pod gets the GPUs that it may have until the pod is gone", b.Container)
		}
	}
	checkLimits(l, r)
	for i := range r.MPS {
		checkMPS(l, &r.MPS[i])
	}
	if r.Unmeasured != "" {
		l.note("use of shared GPUs", "", "is not measured: %s", r.Unmeasured)
	}
	for _, p := range r.Problems {
		if p.Name == report.ClaimsPlain {
			l.note(devicePlugin, "All of it takes Kubernetes 1.36, or its feature gates of DRA on the API server.",
				"%s", p.Reason)
			continue
		}
		l.problem(devicePlugin+": "+p.Name, pluginRemedies()[p.Name], "%s", p.Reason)
	}
}

// checkServed explains a resource that the kubelet does not take from the device plugin, and one that is on its way
// out.
func checkServed(l *Findings, r *report.Resource) {
	subject := "resource " + r.Name
	switch {
	case !r.Registered && r.Owner != "":
		l.problem(subject, "Remove the other one.",
			"is served by %s; heddle-device-plugin waits until it is free", r.Owner)
	case !r.Registered:
		l.problem(subject, "See heddle-device-plugin's log and the kubelet's.",
			"is not registered with the kubelet: %s", cmp.Or(r.LastError, "not yet"))
	case r.Owner != "":
		l.problem(subject, "Remove the other one.",
			"is served by heddle-device-plugin, and %s serves it too: devices may be allocated twice", r.Owner)
	case r.Withdrawn > 0:
		l.note(subject, "", "no longer allocates %s; a device stays listed until no pod holds it",
			cli.Count(r.Withdrawn, "device ID"))
	}
}

// rejectedRemedies returns the actions for a rejected pod, by the kind of rejection.
func rejectedRemedies() map[string]string {
	const evicted = " It is evicted after sgpu.rejectedFor if a controller made it; else delete it."
	return map[string]string{
		"request":     "Correct its limits or annotations: no node can give it that.",
		"allocation":  "Its scheduler chose so." + evicted,
		"unscheduled": "Use a scheduler that knows shared GPUs (spec.schedulerName), or set sgpu.unscheduled: place.",
		"full":        "It starts when there is room." + evicted,
		"dirty":       "It starts when the GPU is clean: docs/operate/dirty-gpus.md.",
		"imex":        "Correct its annotation, or gpuDevice.imexChannels; the module nvidia makes the node's channels.",
		"hcas": "It starts when there are enough healthy HCAs." +
			strings.Replace(evicted, "sgpu.rejectedFor", "a minute", 1),
	}
}

// checkLimits explains what makes limits of shares hold, and which containers nothing limits.
func checkLimits(l *Findings, r *report.Report) {
	const subject = "limits of shares"
	const remedy = "Give the node an enforcer: docs/concepts/enforcers.md has what each needs."
	switch e := r.Enforcers; {
	case e == nil:
	case e.LastError != "":
		l.problem(subject, "See sgpu.enforce: auto takes what works here, none only counts.",
			"shares are rejected: %s", e.LastError)
	default:
		for _, kind := range []struct {
			what, why string
			by        config.Enforcer
		}{
			{"memory", e.WhyMemory, e.Memory}, {"compute", e.WhyCompute, e.Compute},
		} {
			if kind.why != "" {
				l.note(subject, "", "%s", kind.why)
			}
			if kind.by == config.EnforceNone {
				l.note(subject, remedy, "a container may use more than its share of %s", kind.what)
			}
		}
	}
	var containers []string
	for i := range r.Bindings {
		if b := &r.Bindings[i]; len(b.NotEnforced) > 0 {
			containers = append(containers, podName(b.Namespace, b.Pod, b.UID)+" "+b.Container)
		}
	}
	if len(containers) > 0 {
		l.note(subject, "", "nothing keeps within its share: %s", strings.Join(containers, ", "))
	}
}

// checkMPS explains an MPS daemon that does not work, and one that did not.
func checkMPS(l *Findings, d *enforce.Daemon) {
	subject, restarts := fmt.Sprintf("MPS daemon of GPU %d (%s)", d.Index, d.GPU), cli.Count(d.Restarts, "restart")
	switch {
	case d.Reason != "":
		last := "it never ran"
		if !d.LastRunning.IsZero() {
			last = "it last ran at " + rfc3339(d.LastRunning)
		}
		l.problem(subject, "Its containers that ran have to be started again, new ones wait. Its own log is "+
			"mps/"+d.GPU+"/log/control.log in the state directory; see also heddle-device-plugin's log.",
			"is %s since %s: %s (%s, %s)", d.State, rfc3339(d.Since), d.Reason, last, restarts)
	case d.Restarts > 0:
		l.note(subject, "CUDA programs that used it before that fail until they are started again.",
			"is %s since %s, after %s: %s", d.State, rfc3339(d.Since), restarts, d.LastError)
	}
}

// pluginRemedies returns the actions for a problem of the device plugin, by its name.
func pluginRemedies() map[string]string {
	const disk = "See --state-dir: it must be on a disk that is writable and not full."
	const noSwitch = disk + " Until then no GPU changes its mode."
	const corrupt = "The file was set aside beside itself, as .corrupt; or, for a cordon, see the Node's annotation."
	return map[string]string{
		"cdi":          "The runtime reads CDI specs there: the directory must be there, writable and not full (--cdi-dir).",
		"state":        disk,
		"records":      disk,
		"podresources": "See the kubelet: its socket pod-resources/kubelet.sock must answer.",
		"checkpoint": "Containers that run are untouched; " +
			"ordinary init containers cannot start until the kubelet writes it again.",
		"driver":     "Containers with these GPUs wait for it: see the driver's installation.",
		"modes":      corrupt,
		"cordon":     corrupt,
		"modes-file": noSwitch,
		"shares":     "Set the chart's gpuDevice.deviceListStrategy to cdi; or mode: native, and GPUs are exclusive.",
		"claims": "The claims whose records were set aside are prepared again at the next start of their pods; containers " +
			"of running pods cannot restart. Or, without the driver: set gpuDevice.claims.enabled.",
		"claims-driver":  "See --claims-dir, and plugins_registry in the kubelet's directory: both must be writable.",
		"claims-kubelet": "Claims take a kubelet of 1.34 or later with the feature gate DynamicResourceAllocation.",
		"claims-slices":  "See the API server: the driver needs its rights on ResourceSlices. Running pods are not affected.",
		"claims-specs":   "The runtime reads CDI specs in --cdi-dir: it must be writable and not full.",
		"config":         "The last good configuration is in use: heddle config validate.",
	}
}

// podName is namespace/name, or the UID where the pod's name is not known.
func podName(namespace, name, uid string) string {
	if name == "" {
		return "UID " + uid
	}
	return namespace + "/" + name
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339) }
