// Command perftest stands in for ib_write_bw and ib_read_lat where no HCA is: a server and a client that meet by TCP
// and print as the real ones do. mlx5_3 has a quarter of the bandwidth.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

func main() {
	if err := run(context.Background(), filepath.Base(os.Args[0]), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stdout, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program string, args []string, out io.Writer) error {
	set := flag.NewFlagSet(program, flag.ContinueOnError)
	device, port := set.String("d", "", "HCA"), set.String("p", "", "TCP port")
	seconds, version := set.Duration("D", 0, "seconds"), set.Bool("version", false, "")
	for _, name := range []string{"s", "i", "n"} {
		set.String(name, "", "")
	}
	set.Bool("report_gbits", false, "")
	for i, arg := range args {
		if arg == "-D" {
			args[i+1] += "s"
		}
	}
	if err := set.Parse(args); err != nil {
		return err
	}
	if *version {
		fmt.Fprintln(out, "Version: 6.10")
		return nil
	}
	if err := meet(ctx, set.Arg(0), *port, *seconds); err != nil {
		return err
	}
	if program == "ib_read_lat" {
		fmt.Fprint(out, " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n"+
			" 8       1000          1.92           4.96         1.96              1.97\n")
		return nil
	}
	gbps := 388.12
	if *device == "mlx5_3" {
		gbps /= 4
	}
	fmt.Fprintf(out, " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"+
		" 65536      1007             0.00               %.2f             0.7\n", gbps)
	return nil
}

// meet waits for the client, or goes to the server, and then until the measurement is over.
func meet(ctx context.Context, host, port string, duration time.Duration) error {
	if host != "" {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
		if err != nil {
			return fmt.Errorf("Couldn't connect to %s:%s", host, port) //nolint:staticcheck // As perftest has it.
		}
		defer c.Close()
		<-time.After(duration)
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return errors.Join(errors.New("Couldn't listen"), err) //nolint:staticcheck // As perftest has it.
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	_, _ = c.Read(make([]byte, 1)) // Until the client is done.
	return errors.Join(c.Close(), l.Close())
}
