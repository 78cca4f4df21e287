"""The report of a job: one page of HTML that needs nothing but a browser.

Pure: plain data in (``view``), text out (``page.render_page``); ``cli.report`` asks the planner and writes the file.
"""
