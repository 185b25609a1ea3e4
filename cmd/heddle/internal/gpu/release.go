package gpu

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

const (
	// maxRelease bounds a release, so that a forgotten one ends.
	maxRelease = 24 * time.Hour
	// answerTimeout bounds the wait for the device plugin's answer, and answerPoll is the interval
	// between reads of the Node.
	answerTimeout = time.Minute
	answerPoll    = 500 * time.Millisecond
)

type releaseOptions struct {
	node string
	gpus []string
	last time.Duration
	undo bool
}

func releaseCommand(api *cluster.Flags) *cobra.Command {
	var o releaseOptions
	c := &cobra.Command{
		Use: "release NODE [GPU...]", Short: "Close the GPU driver, to reset a GPU or upgrade the driver",
		Long: `Close the GPU driver for a time, to reset a GPU or upgrade the driver.

No new pod gets one of the GPUs, by default of all GPUs of the node, and no
daemon of heddle keeps a session with the driver. Running pods are not touched:
the command prints which pods have GPUs and which processes have their device
nodes open, and exits with 1 while there are any. Run it again to see what is
left, or to extend the release. It ends after --for, or with --undo.`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: api.CompleteNodes,
	}
	c.Flags().DurationVar(&o.last, "for", 10*time.Minute, "how long the release lasts, at most 24h")
	c.Flags().BoolVar(&o.undo, "undo", false, "end the release")
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		o.node, o.gpus = args[0], args[1:]
		switch {
		case o.undo && (len(o.gpus) > 0 || c.Flags().Changed("for")):
			return cli.UsageErrorf(c, "--undo ends the release of all GPUs: it goes with neither a GPU nor --for")
		case o.last < time.Second || o.last > maxRelease:
			return cli.UsageErrorf(c, "--for: %s is not between 1s and %s", o.last, maxRelease)
		}
		client, err := api.Client()
		if err != nil {
			return err
		}
		if o.undo {
			return undo(c, client, o.node)
		}
		status, err := o.release(c.Context(), client)
		if err != nil {
			return err
		}
		held := 0
		if status.Held() {
			held = 1
		}
		return output.PrintFindings(c, status, releaseText(o.node, status), held)
	}
	return c
}

// release asks for a release, and waits until the GPUs are.
func (o *releaseOptions) release(ctx context.Context, client *cluster.Client) (*release.Status, error) {
	uuids, err := Resolve(ctx, client, o.node, o.gpus, false)
	if err != nil {
		return nil, err
	}
	asked := release.Request{Until: time.Now().Add(o.last).UTC().Truncate(time.Second), GPUs: uuids}
	text, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	if err := request(ctx, client, o.node, string(text)); err != nil {
		return nil, err
	}
	var last release.Status
	err = await(ctx, client, o.node, func(node *corev1.Node) bool {
		var now release.Status
		text := node.Annotations[wellknown.GPUReleaseStatus]
		if json.Unmarshal([]byte(text), &now) != nil || !now.Request.Equal(asked) {
			return false
		}
		last = now
		return last.Released
	})
	if err != nil && last.Message != "" {
		err = errors.New(last.Message)
	}
	if err != nil {
		return nil, fmt.Errorf("GPUs of node %s are asked for and not released: %w", o.node, err)
	}
	return &last, nil
}

func undo(c *cobra.Command, client rest.Interface, name string) error {
	if err := request(c.Context(), client, name, ""); err != nil {
		return err
	}
	err := await(c.Context(), client, name, func(node *corev1.Node) bool {
		return node.Annotations[wellknown.GPUReleaseStatus] == ""
	})
	if err != nil {
		return fmt.Errorf("the release of the GPUs of node %s was taken back, and they are not in use again: %w", name, err)
	}
	return cli.Write(c, "GPUs of node "+name+" are not released: the device plugin uses their driver.\n")
}

// Resolve turns names of a node's GPUs, which are indices, UUIDs or PCI addresses, into sorted UUIDs by the report
// of its device plugin. Without a report, and with gone always, it takes any UUID.
func Resolve(ctx context.Context, client *cluster.Client, node string, gpus []string, gone bool) ([]string, error) {
	if len(gpus) == 0 {
		return nil, nil
	}
	there, unknown := cluster.Report(ctx, client, node)
	if unknown != nil {
		there = &report.Report{}
	}
	chosen := map[string]bool{}
	for _, name := range gpus {
		at := slices.IndexFunc(there.GPUs, func(g report.GPU) bool {
			return g.UUID == name || strconv.Itoa(g.Index) == name ||
				strings.EqualFold(g.PCI, name) || strings.EqualFold(g.PCI, "0000:"+name)
		})
		isUUID := wellknown.IsGPUUUID(name) && strings.Contains(name, "-")
		switch {
		case at >= 0:
			chosen[there.GPUs[at].UUID] = true
		case isUUID && (gone || unknown != nil):
			chosen[name] = true
		case unknown != nil:
			return nil, fmt.Errorf("the GPUs of node %s are not known, give the UUID and not %.100q: %w", node, name, unknown)
		default:
			return nil, fmt.Errorf("node %s has no GPU %.100q; it has %s", node, name, strings.Join(names(there), ", "))
		}
	}
	return slices.Sorted(maps.Keys(chosen)), nil
}

// names returns the GPUs of a node by index and UUID.
func names(r *report.Report) (all []string) {
	for i := range r.GPUs {
		all = append(all, fmt.Sprintf("%d (%s)", r.GPUs[i].Index, r.GPUs[i].UUID))
	}
	return all
}

// request writes the annotation.
func request(ctx context.Context, client rest.Interface, name, value string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := cluster.Node(ctx, client, name)
		if err != nil || node.Annotations[wellknown.GPURelease] == value {
			return err
		}
		return write(ctx, client, node, wellknown.GPURelease, value)
	})
}

// await asks for the Node until it is as wanted.
func await(ctx context.Context, client rest.Interface, name string, done func(*corev1.Node) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout,
		fmt.Errorf("heddle-device-plugin on node %s has not done it in %s; does it run?", name, answerTimeout))
	defer cancel()
	err := wait.PollUntilContextCancel(ctx, answerPoll, true, func(ctx context.Context) (bool, error) {
		node, err := cluster.Node(ctx, client, name)
		return err == nil && done(node), err
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// releaseText returns the answer for people.
func releaseText(node string, s *release.Status) string {
	which := "a GPU of it"
	if len(s.Request.GPUs) > 0 {
		which = "GPU " + strings.Join(s.Request.GPUs, " or ")
	}
	text := fmt.Sprintf("Node %s has let go of its GPUs' driver until %s. No new pod gets %s.\n",
		node, s.Request.Until.Local().Format(time.DateTime), which)
	if len(s.Pods) > 0 {
		rows := [][]string{{"POD", "CONTAINER", "GPUS"}}
		for _, p := range s.Pods {
			rows = append(rows, []string{p.Namespace + "/" + p.Name, p.Container, strings.Join(p.GPUs, " ")})
		}
		text += "\nThese pods have them:\n" + cli.Table(rows)
	}
	if len(s.Processes) > 0 {
		rows := [][]string{{"PID", "COMMAND", "POD", "OPEN"}}
		for _, p := range s.Processes {
			rows = append(rows, []string{
				strconv.Itoa(p.PID), p.Command, cmp.Or(p.Pod, "-"), strings.Join(p.Devices, " "),
			})
		}
		text += "\nThese processes have device nodes open:\n" + cli.Table(rows)
	}
	if s.More > 0 {
		text += fmt.Sprintf("\nand %d more.\n", s.More)
	}
	if s.Unseen != "" {
		text += "\nThere may be other processes: " + cli.Printable(s.Unseen) + ".\n"
	}
	if !s.Held() {
		text += "\nNothing that heddle knows of holds them.\n"
	}
	return text
}
