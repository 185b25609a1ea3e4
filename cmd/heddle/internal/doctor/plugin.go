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
	"strconv"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
)

const (
	pluginFlag = "device-plugin"
	// pluginURL is where heddle-device-plugin answers, on the node's network.
	pluginURL     = "http://127.0.0.1:9102"
	pluginTimeout = time.Second
	// maxReport bounds what is read of an answer, in bytes: a node has some
	// hundred bindings of some hundred bytes.
	maxReport = 16 << 20
)

// answer is the device plugin's, nil with the reason why there is none.
type answer struct {
	report *report.Report
	err    error
}

// addPlugin explains what the device plugin answers. That it does not is worth
// a word only where it is expected to.
func (r *Report) addPlugin(a *answer, expected bool) {
	if a.err != nil {
		if expected {
			r.Findings = append(r.Findings, finding.Finding{
				Level: finding.Note, Subject: devicePlugin, Message: "the device plugin does not answer: " + a.err.Error(),
				Remedy: "It runs on the node, and answers at its --metrics-address: see --" + pluginFlag + ".",
			})
		}
		return
	}
	r.tell(a.report)
}

// addPluginOf asks the device plugin of a Node by way of the API server. Where
// it does not run, others say so.
func (r *Report) addPluginOf(ctx context.Context, there *onNode) {
	if _, runs := running(there.pods, devicePlugin); !runs {
		return
	}
	answer, err := cluster.Report(ctx, there.client, there.node.Name)
	if err != nil {
		r.Findings = append(r.Findings, finding.Finding{
			Level: finding.Note, Subject: devicePlugin, Message: "who has which devices is not known: " + err.Error(),
			Remedy: "It takes the right to get pods/proxy; or run heddle doctor on the node.",
		})
	} else {
		r.tell(answer)
	}
	finding.Sort(r.Findings)
}

// tell takes the device plugin's answer.
func (r *Report) tell(answer *report.Report) {
	r.Plugin, r.Node = answer, cmp.Or(r.Node, answer.Node)
	for i := range r.Resources {
		if slices.Contains(answer.Unserved, r.Resources[i].Name) {
			r.Resources[i].Count, r.Resources[i].Reason = 0, "the device plugin does not serve it: see below"
		}
	}
	for i := range answer.Resources {
		r.Findings = append(r.Findings, served(&answer.Resources[i])...)
	}
	r.Findings = append(r.Findings, modesOf(answer, r.Findings)...)
	r.Findings = append(r.Findings, refused(answer.Refused)...)
	r.Findings = append(r.Findings, unrecorded(answer)...)
	r.Findings = append(r.Findings, limits(answer.Enforcers)...)
	r.Findings = append(r.Findings, mps(answer.MPS)...)
	r.Findings = append(r.Findings, unmeasured(answer.Unmeasured)...)
	for _, p := range answer.Problems {
		r.Findings = append(r.Findings, finding.Finding{
			Level: finding.Problem, Subject: devicePlugin + ": " + p.Name, Message: p.Reason, Remedy: remedy(p.Name),
		})
	}
	finding.Sort(r.Findings)
}

func askPlugin(ctx context.Context, url string) *answer {
	r, err := reportOf(ctx, url)
	return &answer{r, err}
}

func reportOf(ctx context.Context, url string) (*report.Report, error) {
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
	var answer report.Report
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("the answer of %s: %w", request.URL, err)
	}
	if answer.Node == "" {
		return nil, errors.New("what answers at " + request.URL.String() + " is another program")
	}
	return &answer, nil
}

// served explains a resource that the kubelet does not take from us, and one
// that is on its way out.
func served(r *report.Resource) []finding.Finding {
	f := finding.Finding{Level: finding.Problem, Subject: "resource " + r.Name}
	switch {
	case !r.Registered && r.Owner != "":
		f.Message = "is served by " + r.Owner + ", so we leave it alone and wait"
		f.Remedy = "Remove the other one, or start heddle-device-plugin with --takeover."
	case !r.Registered:
		f.Message = "is not registered with the kubelet: " + cmp.Or(r.Fault, "not yet")
		f.Remedy = "See heddle-device-plugin's log and the kubelet's."
	case r.Owner != "":
		f.Message = "is served by us, and " + r.Owner + " serves it too: devices may be handed out twice"
		f.Remedy = "Remove the other one."
	case r.Withdrawn > 0:
		f.Level = finding.Note
		f.Message = fmt.Sprintf("no longer hands out %s; a device stays listed until no pod holds it",
			cli.Count(r.Withdrawn, "device ID"))
	default:
		return nil
	}
	return []finding.Finding{f}
}

// remedy is what to do about a problem of the device plugin.
func remedy(name string) string {
	switch name {
	case "cdi":
		return "The runtime reads CDI specs there: the directory must be there, writable and not full (--cdi-dir)."
	case "state", "records":
		return "See --state-dir: it must be on a disk that is writable and not full."
	case "podresources":
		return "See the kubelet: its socket pod-resources/kubelet.sock must answer."
	case "checkpoint":
		return "Containers that run are untouched; ordinary init containers cannot start until the kubelet writes it anew."
	case "driver":
		return "Containers with these GPUs wait for it: see the driver's installation."
	case "modes", "cordon":
		return "The file was set aside beside itself, as .corrupt; or, for a cordon, see the Node's annotation."
	case "modes-file", "cordon-file":
		return "See --state-dir: it must be on a disk that is writable and not full. Until then no card changes its mode."
	case "unrecorded":
		return "Delete the pod: it is made anew, with cards that are on record."
	case "shares":
		return "Set the chart's gpuDevice.deviceListStrategy to cdi; or mode: native, and cards are handed out whole."
	case "config":
		return "The last good configuration is in use: heddle config validate."
	}
	return ""
}

// handedOut renders what the kubelet is told and which containers have what.
func handedOut(p *report.Report) string {
	rows := [][]string{{"RESOURCE", "SERVED BY", "CAPACITY", "ALLOCATABLE", "WITHDRAWN", "WHY NOT MORE"}}
	for i := range p.Resources {
		r := &p.Resources[i]
		by := "heddle"
		switch {
		case r.Registered:
		case r.Owner != "":
			by = r.Owner
		default:
			by = "nobody"
		}
		rows = append(rows, []string{
			r.Name, by, strconv.Itoa(r.Capacity), strconv.Itoa(r.Allocatable), strconv.Itoa(r.Withdrawn), cmp.Or(r.Reason, "-"),
		})
	}
	text := "\n" + cli.Table(rows)
	if len(p.Bindings) == 0 {
		return text + sharedCards(p) + "\nNo container has devices.\n"
	}
	rows = [][]string{{"POD", "CONTAINER", "GPUS", "HCAS", "CLASS"}}
	for i := range p.Bindings {
		b := &p.Bindings[i]
		if len(b.GPUs)+len(b.HCAs) == 0 && len(b.Shares) > 0 {
			continue // The table of tenants has it.
		}
		uuids := slices.Clone(b.GPUs)
		for _, s := range b.Shares {
			uuids = append(uuids, s.UUID)
		}
		rows = append(rows, []string{
			podOf(b), b.Container, cmp.Or(cards(uuids, p.GPUs), "-"), cmp.Or(strings.Join(b.HCAs, " "), "-"),
			cmp.Or(b.Class, "-"),
		})
	}
	if len(rows) > 1 {
		text += "\n" + cli.Table(rows)
	}
	return text + sharedCards(p)
}

// shortUUID is the length of GPU-01234567, which tells the cards of a node
// apart as well as the whole.
const shortUUID = 12

// cards are GPUs by index, with the start of their UUIDs.
func cards(uuids []string, index map[string]int) string {
	sorted := slices.SortedStableFunc(slices.Values(uuids), func(a, b string) int {
		return cmp.Compare(index[a], index[b])
	})
	words := make([]string, 0, len(sorted))
	for _, uuid := range sorted {
		short := uuid[:min(len(uuid), shortUUID)]
		if at, known := index[uuid]; known {
			short = fmt.Sprintf("%d (%s)", at, short)
		}
		words = append(words, short)
	}
	return strings.Join(words, " ")
}
