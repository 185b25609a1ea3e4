package topo

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/explain"
	"github.com/heddle-dev/heddle/topo/manifest"
)

// NewPlanCommand returns `heddle plan`.
func NewPlanCommand() *cobra.Command {
	m := &Master{}
	file := ""
	c := &cobra.Command{
		Use: "plan -f FILE", Short: "Show whether a job would fit, where, or about when", Args: cobra.NoArgs,
		Long: `Show whether a job would fit, where, or about when.

It plans the pods of a manifest as heddle-scheduler does, on the cluster as it
is now, and creates nothing. Kinds that make pods, in any number of documents:
Deployment, Job, JobSet, LeaderWorkerSet, MPIJob, Pod, PyTorchJob, RayCluster,
RayJob, ReplicaSet, StatefulSet, TFJob and TrainJob; Job also of Volcano.
PodGroups, ResourceClaims and ResourceClaimTemplates count with them.

If they do not fit, it shows what is missing, the smallest change with which
they would fit, and when they fit by the expected ends of running pods:
activeDeadlineSeconds, and the annotation heddle.dev/expected-duration. It
counts what heddle why counts.

The exit code is 0 if all pods fit now, 1 if not, and 2 if that is not known.`,
		Example: `  heddle plan -f job.yaml
  kubectl kustomize . | heddle plan -f - -o json`,
	}
	m.Register(c)
	c.Flags().StringVarP(&file, "filename", "f", "", "the manifest; - reads the standard input")
	_ = c.MarkFlagRequired("filename")
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		namespace, err := m.Cluster.Namespace()
		if err != nil {
			return err
		}
		content, err := cli.Read(c, file)
		if err != nil {
			return err
		}
		set, err := manifest.Read(bytes.NewReader(content), namespace)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		lister, groups, err := m.lister(c)
		if err != nil {
			return err
		}
		fit, err := lister.Fit(c.Context(), groups, set)
		if err != nil {
			return err
		}
		text := fitText(fit, time.Now())
		if len(groups) == 0 {
			text += withoutGroups
		}
		if err := output.Print(c, fit, text); err != nil || fit.Fits {
			return err
		}
		return cli.ErrFindings
	}
	return c
}

// fitText returns the answer for people.
func fitText(fit *explain.Fit, now time.Time) string {
	var b strings.Builder
	for i := range fit.Jobs {
		if j := &fit.Jobs[i]; j.Note != "" {
			fmt.Fprintf(&b, "%s %s/%s: %s.\n", j.Kind, j.Namespace, j.Name, j.Note)
		}
	}
	if len(fit.Ignored) > 0 {
		fmt.Fprintf(&b, "Not planned: %s.\n", strings.Join(fit.Ignored, ", "))
	}
	for i := range fit.Gangs {
		g := &fit.Gangs[i]
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		what := fmt.Sprintf("%s/%s, %s", g.Namespace, g.Name, cli.Count(g.Pods, "pod"))
		if len(g.Places) > 0 {
			fmt.Fprintf(&b, "%s: fits now %s\n%s", what, explain.Where(g.Kind, g.Group), placeTable(g.Places))
			continue
		}
		fmt.Fprintf(&b, "%s: does not fit now\n", what)
		if len(g.Asks) > 0 {
			b.WriteString(whyRoom(&g.Answer, now))
		}
		b.WriteString(whenText(g.When, now))
	}
	return b.String()
}

func placeTable(places []explain.Place) string {
	rows := [][]string{{"RANK", "POD", "NODE"}}
	for rank, p := range places {
		rows = append(rows, []string{fmt.Sprint(rank), p.Pod, cmp.Or(p.Node, "- (beyond its minimum)")})
	}
	return cli.Table(rows)
}

// whenText says when pods fit, and what that assumes.
func whenText(w *explain.When, now time.Time) string {
	switch {
	case w.Never != "":
		return "\nThey never fit: " + cli.Printable(w.Never) + "\n"
	case w.At.IsZero():
		return fmt.Sprintf("\nWhen is not known: %s with devices %s no expected end (annotation %s).\n",
			cli.Count(w.Endless, "running pod"), map[bool]string{true: "has", false: "have"}[w.Endless == 1],
			wellknown.ExpectedDuration)
	}
	text := fmt.Sprintf("\nAbout when: in %s, at %s, after the end of %s, if no other pod gets their room.\n",
		duration.HumanDuration(w.At.Sub(now)), w.At.UTC().Format(time.RFC3339), strings.Join(w.After, ", "))
	if w.Ahead > 0 {
		text += fmt.Sprintf("%s of the same priority or a higher one may start first.\n", cli.Count(w.Ahead, "waiting pod"))
	}
	return text
}
