// Command heddle shows and explains what nodes have, for people: it runs the
// same code as the daemons. As kubectl-heddle it is a plugin of kubectl.
package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/convert"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/doctor"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/drain"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/fabric"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/gpu"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/inspect"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/status"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/supportbundle"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/topo"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/uninstall"
)

const long = `heddle shows and explains what GPU nodes have.

inspect and doctor read this host, or with --machine FILE a dump of another:
heddle inspect -o json > FILE. inspect shows problems and exits with 0.

Exit code 0: the command did its work; 1: it found a problem (doctor, and others
whose help has that code); 2: it could not find out.`

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand(os.Args[0]).ExecuteContext(ctx)
	stop()
	os.Exit(cli.Exit(err, os.Stderr))
}

// newCommand returns the program under the name that it was called by.
func newCommand(program string) *cobra.Command {
	root := &cobra.Command{
		Use: "heddle COMMAND", DisableFlagsInUseLine: true, Short: "Show and explain what GPU nodes have", Long: long,
		SilenceErrors: true, SilenceUsage: true, DisableAutoGenTag: true,
		Args: cobra.NoArgs,
	}
	if strings.HasPrefix(filepath.Base(program), "kubectl-heddle") {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl heddle"}
	}
	root.RunE = cli.NeedCommand
	root.AddCommand(
		inspect.NewCommand(), doctor.NewCommand(), gpu.NewCommand(), drain.NewCommand(),
		topo.NewCommand(), topo.NewWhyCommand(), topo.NewPlanCommand(), fabric.NewCommand(),
		configCommand(),
		status.NewCommand(), supportbundle.NewCommand(version), uninstall.NewCommand(),
		versionCommand(), optionsCommand(),
	)
	cli.SetUsage(root)
	return root
}

// optionsCommand is `heddle options`, as kubectl has it.
func optionsCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "options", Short: "List the options that choose the API server and topo-master", Args: cobra.NoArgs,
		Long: "These options choose the API server, as for kubectl, and topo-master.",
	}
	new(cluster.Flags).RegisterVisible(c.Flags())
	topo.RegisterVisible(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		return cli.Write(c, c.LocalFlags().FlagUsagesWrapped(cli.Width))
	}
	return c
}

// versionCommand is `heddle version`: of this program and, if a kubeconfig names a server, of the daemons there.
func versionCommand() *cobra.Command {
	var at cluster.Flags
	c := &cobra.Command{
		Use: "version", Short: "Print the versions of this program and of the daemons", Args: cobra.NoArgs,
	}
	at.Register(c)
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		v := versions{Client: version}
		var err error
		if client, unset := at.Client(); unset == nil {
			err = v.ask(c.Context(), client, at.Given(cluster.System))
		}
		return errors.Join(output.Print(c, v, v.text()), err)
	}
	return c
}

// versions is the output of `heddle version`.
type versions struct {
	Client string `json:"client"`
	// Daemons are the versions of heddle in the cluster, usually one.
	Daemons    []string `json:"daemons,omitempty"`
	Kubernetes string   `json:"kubernetes,omitempty"`
}

func (v *versions) ask(ctx context.Context, client *cluster.Client, namespace string) error {
	var info apiversion.Info
	if _, err := cluster.ReadPath(ctx, client, "/version", "", &info); err != nil {
		return err
	}
	v.Kubernetes = info.GitVersion
	daemons, err := status.Read(ctx, client, namespace, "")
	for i := range daemons {
		v.Daemons = append(v.Daemons, daemons[i].Version)
	}
	slices.Sort(v.Daemons)
	v.Daemons = slices.Compact(v.Daemons)
	return err
}

func (v *versions) text() string {
	text := "heddle " + v.Client + "\n"
	if v.Kubernetes != "" {
		text += "Daemons: " + cmp.Or(strings.Join(v.Daemons, ", "), "none") + "\nKubernetes: " + v.Kubernetes + "\n"
	}
	return text
}

// configCommand is `heddle config`. Its `validate` checks a directory with the
// ConfigMap's keys as files, and prints every fault with its place.
func configCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "config COMMAND", DisableFlagsInUseLine: true, Short: "Check a configuration, or make one of another plugin's",
		Args: cobra.NoArgs, RunE: cli.NeedCommand,
	}
	parent.AddCommand(convert.NewCommand(), &cobra.Command{
		Use: "validate DIR", Short: "Check a directory with the ConfigMap's keys as files",
		Long: `Check a directory with the ConfigMap's keys as files: version, cluster-config,
nodes-config. Every fault is printed as file:line: key: what is wrong. Exit code
1 if there is any.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return validate(c, args[0]) },
	})
	return parent
}

func validate(cmd *cobra.Command, dir string) error {
	c, err := config.Load(dir, &rule.CEL{})
	if err == nil {
		return cli.Write(cmd, dir+": valid: "+cli.Count(len(c.Cluster.Labels), "label rule")+" and "+
			cli.Count(len(c.Cluster.RDMA.Resources), "RDMA resource")+" for every node, "+
			cli.Count(len(c.Overrides), "override")+"\n")
	}
	faults, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var b strings.Builder
	for _, f := range faults.Unwrap() {
		b.WriteString(cli.Printable(filepath.Join(dir, f.Error())) + "\n")
	}
	if err := cli.Write(cmd, b.String()); err != nil {
		return err
	}
	return cli.ErrFindings
}
