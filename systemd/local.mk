# systemd units, users and directories.  Paths are filled in when the install prefix is known: at make time.
EXTRA_DIST += systemd/penstockd.service.in systemd/penstock-front.service.in systemd/sysusers.conf systemd/tmpfiles.conf
systemd_units = systemd/penstockd.service systemd/penstock-front.service
nodist_systemdunit_DATA = $(systemd_units)
CLEANFILES += $(systemd_units)
sysusersdir = $(prefix)/lib/sysusers.d
tmpfilesdir = $(prefix)/lib/tmpfiles.d

systemd/%.service: $(top_srcdir)/systemd/%.service.in Makefile
	@$(MKDIR_P) systemd
	$(AM_V_GEN)$(SED) -e 's|@bindir[@]|$(bindir)|g' -e 's|@sbindir[@]|$(sbindir)|g' -e 's|@sysconfdir[@]|$(sysconfdir)|g' \
		-e 's|@docdir[@]|$(docdir)|g' $< > $@.tmp && mv $@.tmp $@

install-data-local:
	$(MKDIR_P) '$(DESTDIR)$(sysusersdir)' '$(DESTDIR)$(tmpfilesdir)'
	$(INSTALL_DATA) $(top_srcdir)/systemd/sysusers.conf '$(DESTDIR)$(sysusersdir)/penstock.conf'
	$(INSTALL_DATA) $(top_srcdir)/systemd/tmpfiles.conf '$(DESTDIR)$(tmpfilesdir)/penstock.conf'
uninstall-local:
	rm -f '$(DESTDIR)$(sysusersdir)/penstock.conf' '$(DESTDIR)$(tmpfilesdir)/penstock.conf'
