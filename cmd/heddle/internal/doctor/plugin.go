package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

const (
	pluginFlag = "device-plugin"
	// defaultPluginURL is where heddle-device-plugin answers, on the node's
	// network.
	defaultPluginURL = "http://127.0.0.1:9102"
	pluginTimeout    = time.Second
	// maxReport bounds what is read of an answer, in bytes: a node has some
	// hundred bindings of some hundred bytes.
	maxReport = 16 << 20
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
		return nil, fmt.Errorf("ask %s: %s", request.URL, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReport))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", request.URL, err)
	}
	r := &report.Report{}
	if err := json.Unmarshal(body, r); err != nil {
		return nil, fmt.Errorf("decode the answer of %s: %w", request.URL, err)
	}
	if r.Node == "" {
		return nil, errors.New("what answers at " + request.URL.String() + " is another program")
	}
	return r, nil
}

// noPlugin explains that the device plugin did not answer, where an answer was
// expected.
func noPlugin(in *input) []finding.Finding {
	switch {
	case !in.here:
		return []finding.Finding{note(devicePlugin, "which container has which devices is not known: "+in.pluginErr.Error(),
			"It takes the right to get pods/proxy; or run heddle doctor on the node.")}
	case in.pluginExpected, in.node != nil && in.node.offers(&in.config):
		return []finding.Finding{note(devicePlugin, "the device plugin does not answer: "+in.pluginErr.Error(),
			"It runs on the node, and answers at its --metrics-address: see --"+pluginFlag+".")}
	}
	return nil
}

// checkPlugin explains what the device plugin reports. What the Node reports too
// is among before, and not repeated.
func checkPlugin(r *report.Report, before []finding.Finding) []finding.Finding {
	var found []finding.Finding
	for i := range r.Resources {
		found = append(found, checkServed(&r.Resources[i])...)
	}
	for _, f := range checkModes(r) {
		if !slices.ContainsFunc(before, func(b finding.Finding) bool { return b.Message == f.Message }) {
			found = append(found, f)
		}
	}
	found = append(found, checkRejected(r.Rejected)...)
	found = append(found, checkUnrecorded(r.Bindings)...)
	found = append(found, checkLimits(r.Enforcers)...)
	found = append(found, checkMPS(r.MPS)...)
	if r.Unmeasured != "" {
		found = append(found, note("use of shared GPUs", "is not measured: "+r.Unmeasured, ""))
	}
	for _, p := range r.Problems {
		found = append(found, problem(devicePlugin+": "+p.Name, p.Reason, pluginRemedy(p.Name)))
	}
	return found
}

// checkServed explains a resource that the kubelet does not take from the device
// plugin, and one that is on its way out.
func checkServed(r *report.Resource) []finding.Finding {
	subject := "resource " + r.Name
	switch {
	case !r.Registered && r.Owner != "":
		return []finding.Finding{problem(subject, "is served by "+r.Owner+"; heddle-device-plugin waits until it is free",
			"Remove the other one, or start heddle-device-plugin with --takeover.")}
	case !r.Registered:
		return []finding.Finding{problem(subject, "is not registered with the kubelet: "+cmp.Or(r.Fault, "not yet"),
			"See heddle-device-plugin's log and the kubelet's.")}
	case r.Owner != "":
		return []finding.Finding{problem(subject,
			"is served by heddle-device-plugin, and "+r.Owner+" serves it too: devices may be handed out twice",
			"Remove the other one.")}
	case r.Withdrawn > 0:
		return []finding.Finding{note(subject, "no longer hands out "+cli.Count(r.Withdrawn, "device ID")+
			"; a device stays listed until no pod holds it", "")}
	}
	return nil
}

// checkModes explains GPUs that are handed out otherwise than configured, or not
// at all.
func checkModes(r *report.Report) []finding.Finding {
	var found []finding.Finding
	for i := range r.GPUs {
		if pending := r.GPUs[i].Pending(); pending != "" {
			found = append(found, note("Node "+r.Node, pending, ""))
		}
	}
	for i := range r.GPUs {
		if r.GPUs[i].Cordoned {
			found = append(found, cordoned(r.Node, r.GPUs[i].UUID))
		}
	}
	for _, uuid := range r.UnknownCordoned {
		found = append(found, note("Node "+r.Node, "GPU "+uuid+" is cordoned and not on this node", uncordon(r.Node, uuid)))
	}
	return found
}

// checkRejected explains the pods that wait for shares.
func checkRejected(all []report.Rejection) []finding.Finding {
	var found []finding.Finding
	for i := range all {
		r := &all[i]
		found = append(found, problem("pod "+podName(r.Namespace, r.Pod, r.UID),
			fmt.Sprintf("container %s gets no GPU since %s: %s", r.Container, rfc3339(r.Since), r.Reason),
			rejectedRemedy(r.Kind)))
	}
	return found
}

// rejectedRemedy is what to do about a rejected pod, by the kind of rejection.
func rejectedRemedy(kind string) string {
	switch kind {
	case "request":
		return "Correct its limits or annotations: no node can give it that."
	case "allocation":
		return "Its scheduler chose so. It is evicted after sgpu.refusedFor if a controller made it; else delete it."
	case "unscheduled":
		return "Use a scheduler that knows shared GPUs (spec.schedulerName), or set sgpu.unscheduled: place."
	case "full":
		return "It starts when there is room. It is evicted after sgpu.refusedFor if a controller made it; else delete it."
	}
	return ""
}

// checkUnrecorded explains containers of which the device plugin has lost the
// checkpoint entry and the CDI spec.
func checkUnrecorded(all []report.Binding) []finding.Finding {
	var found []finding.Finding
	for i := range all {
		if b := &all[i]; b.Unrecorded {
			found = append(found, problem("pod "+podName(b.Namespace, b.Pod, b.UID),
				"the checkpoint entry and the CDI spec of container "+b.Container+" were lost; no other pod gets the GPUs "+
					"that it may have until the pod is gone",
				"It runs on. Delete the pod: its controller makes another, with GPUs that are in the checkpoint."))
		}
	}
	return found
}

// checkLimits explains what makes limits of shares hold, and what does not.
func checkLimits(e *report.Enforcers) []finding.Finding {
	const subject = "limits of shares"
	if e == nil {
		return nil
	}
	if e.Fault != "" {
		return []finding.Finding{problem(subject, "shares are rejected: "+e.Fault,
			"See sgpu.enforce: auto takes what works here, none only counts.")}
	}
	var found []finding.Finding
	for _, reason := range []string{e.WhyMemory, e.WhyCompute} {
		if reason != "" {
			found = append(found, note(subject, reason, ""))
		}
	}
	return found
}

// checkMPS explains MPS daemons that do not work, and those that did not.
func checkMPS(all []enforce.Daemon) []finding.Finding {
	var found []finding.Finding
	for i := range all {
		d := &all[i]
		subject := fmt.Sprintf("MPS daemon of GPU %d (%s)", d.Index, d.GPU)
		restarts := cli.Count(d.Restarts, "restart")
		switch {
		case d.Reason != "":
			last := "it never ran"
			if !d.LastRunning.IsZero() {
				last = "it last ran at " + rfc3339(d.LastRunning)
			}
			found = append(found, problem(subject,
				fmt.Sprintf("is %s since %s: %s (%s, %s)", d.State, rfc3339(d.Since), d.Reason, last, restarts),
				"Its containers that ran have to be started again, new ones wait. Its own log is "+
					"mps/"+d.GPU+"/log/control.log in the state directory; see also heddle-device-plugin's log."))
		case d.Restarts > 0:
			found = append(found, note(subject,
				fmt.Sprintf("is %s since %s, after %s: %s", d.State, rfc3339(d.Since), restarts, d.LastError),
				"CUDA programs that used it before that fail until they are started again."))
		}
	}
	return found
}

// pluginRemedy is what to do about a problem of the device plugin, by its name.
func pluginRemedy(name string) string {
	switch name {
	case "cdi":
		return "The runtime reads CDI specs there: the directory must be there, writable and not full (--cdi-dir)."
	case "state", "records":
		return "See --state-dir: it must be on a disk that is writable and not full."
	case "podresources":
		return "See the kubelet: its socket pod-resources/kubelet.sock must answer."
	case "checkpoint":
		return "Containers that run are untouched; ordinary init containers cannot start until the kubelet writes it again."
	case "driver":
		return "Containers with these GPUs wait for it: see the driver's installation."
	case "modes", "cordon":
		return "The file was set aside beside itself, as .corrupt; or, for a cordon, see the Node's annotation."
	case "modes-file", "cordon-file":
		return "See --state-dir: it must be on a disk that is writable and not full. Until then no GPU changes its mode."
	case "shares":
		return "Set the chart's gpuDevice.deviceListStrategy to cdi; or mode: native, and GPUs are exclusive."
	case "config":
		return "The last good configuration is in use: heddle config validate."
	}
	return ""
}

// podName is namespace/name, or the UID where the pod's name is not known.
func podName(namespace, name, uid string) string {
	if name == "" {
		return "UID " + uid
	}
	return namespace + "/" + name
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339) }
